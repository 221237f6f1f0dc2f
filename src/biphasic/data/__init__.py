"""From text to batches: documents, tokens on disk, rows, and batches of a step."""
