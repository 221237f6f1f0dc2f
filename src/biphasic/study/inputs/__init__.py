"""What a study reads: text, tasks and finished models."""
