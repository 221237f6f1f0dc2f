"""Models from presets, folders and the hub."""
