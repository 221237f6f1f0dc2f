"""The content of a report's page: from records to the rows of its templates."""
