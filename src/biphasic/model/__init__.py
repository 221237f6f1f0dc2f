"""transformers' own models behind one attention function."""
