"""The Python interface: one function for each command, which the command calls."""
