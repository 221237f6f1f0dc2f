"""Custom tasks, from the user's data in common formats."""
