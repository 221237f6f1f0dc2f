"""transformers' models with one attention function."""
