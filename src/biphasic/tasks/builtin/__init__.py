"""The built-in tasks, made from the documentation of the built-in corpus."""
