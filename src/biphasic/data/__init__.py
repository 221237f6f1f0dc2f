"""Data: documents, token shards, rows, and the batches of a step."""
