"""Progress of a study, while it runs and afterwards."""
