"""The formats that a model is written in."""
