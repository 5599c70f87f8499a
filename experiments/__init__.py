"""Experiment files (YAML), one per experiment."""
