"""Export of encoders: folders that work without biphasic, model cards, upload to the hub."""

MAX_SHARD_SIZE = "5GB"  # larger weights are split into several files
