"""Attacks: changes to an unlearned model before it is scored again. One file each."""
