"""Task folders and files of texts: read and written."""
