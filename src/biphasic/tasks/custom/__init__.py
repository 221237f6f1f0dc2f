"""Tasks from the user's own data, in the field's formats."""
