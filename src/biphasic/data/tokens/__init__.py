"""Tokenization of documents to files."""
