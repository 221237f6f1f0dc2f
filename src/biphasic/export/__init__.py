"""Export of encoders: folders that work without biphasic, model cards, upload to the hub."""

from typing import Literal

# The class that an encoder is written as.
As = Literal["auto", "eurobert", "llama", "own"]
MAX_SHARD_SIZE = "5GB"  # larger weights are split into several files
