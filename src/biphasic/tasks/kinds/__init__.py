"""The kinds of tasks: how each is encoded, trained and scored."""
