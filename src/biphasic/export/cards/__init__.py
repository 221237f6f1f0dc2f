"""Model cards: what a model is, and how it came about."""
