"""Building corpora from sources: selection, mixing, tokenization, checks."""

DEFAULT_VOCAB_SIZE = 8192  # of a tokenizer that is trained
