"""The report page: its content and templates."""
