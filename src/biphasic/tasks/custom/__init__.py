"""People's own data, in the field's formats."""
