"""Downstream tasks: built-in data, formats, encodings, fine-tuning and metrics."""
