"""Text sources: files, the hub, and the documentation of installed libraries."""
