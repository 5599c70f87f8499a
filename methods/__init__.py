"""One file per unlearning method. Start with `npo.py`; copy it to make your own."""
