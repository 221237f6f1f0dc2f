"""Building corpora from sources: selection, mixing, tokenization, checks."""
