"""The embedded corpora: invented authors, true facts, refusals, and the small Llama that learns them."""
