"""What the functions of the Python interface return: text, tables and drawings."""
