"""Encoders for others to use: folders that work without biphasic, cards, the hub."""
