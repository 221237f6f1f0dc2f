"""Export of encoders: folders that work without biphasic, model cards, upload to the hub."""
