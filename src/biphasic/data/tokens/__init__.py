"""From documents to tokens on disk."""
