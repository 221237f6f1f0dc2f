"""What stands on a report's page, from records to the rows that its templates show."""
