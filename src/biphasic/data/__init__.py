"""From text to batches: documents, tokens on disk, rows, and what a step reads."""
