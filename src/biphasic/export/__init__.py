"""Export of encoders: folders that work without biphasic, model cards, upload to the hub."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Literal

from biphasic.errors import ConfigError, install_command

Format = Literal["hf", "sentence-transformers", "onnx"]
# The class that an encoder is written as.
As = Literal["auto", "eurobert", "llama", "own"]
Dtype = Literal["float32", "bfloat16"]
MAX_SHARD_SIZE = "5GB"  # larger weights are split into several files
_SIZE = re.compile(r"[1-9]\d*(KB|MB|GB)")
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class ExportSettings:
    """How a model is written."""

    format: Format = "hf"
    as_: As = "auto"
    dtype: Dtype = "float32"
    max_shard_size: str = MAX_SHARD_SIZE
    adapter: bool = False  # LoRA stays apart from the matrices that it changes

    def check(self) -> None:
        """Raise an error for settings that no model can be written with; this imports no torch."""
        if not _SIZE.fullmatch(self.max_shard_size):
            size = self.max_shard_size
            raise ConfigError(f"max_shard_size: '{size}' is not a size such as 5GB or 500MB")
        if self.format == "onnx":
            require_packages()
            if self.adapter:
                raise ConfigError("adapter: a graph has merged weights; omit adapter")
            if self.as_ == "own":
                raise ConfigError(
                    "as: own is code for torch, and a graph needs none; use --as llama"
                )
            if self.max_shard_size != MAX_SHARD_SIZE:
                raise ConfigError("max_shard_size: a graph is not split; omit max_shard_size")
            if self.dtype != "float32":
                raise ConfigError("precision: bf16 is not supported for ONNX; use fp32")

    def inputs(self, identity: str) -> dict[str, str]:
        """Return everything that determines the content of a model's export."""
        settings = asdict(self)
        as_ = settings.pop("as_")
        # Exports have the identities that they had before there were forms and adapters.
        if as_ != "auto":
            settings["as"] = as_
        if not self.adapter:
            del settings["adapter"]
        return {"command": "export", "model": identity, **settings}


def require_packages() -> None:
    """Raise an error if packages of the extra `onnx` are missing."""
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"ONNX export needs {', '.join(missing)}; install with: {install_command('onnx')}"
        )
