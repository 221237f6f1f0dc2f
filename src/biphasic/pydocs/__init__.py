"""The built-in source of text, documentation of installed libraries, and tasks made from it."""
