"""The commands of studies and their jobs."""
