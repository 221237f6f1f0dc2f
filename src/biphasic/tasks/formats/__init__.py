"""Reading and writing task folders and files of texts."""
