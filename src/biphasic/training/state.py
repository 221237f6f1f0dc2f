"""States on disk: the result of training after a step, written atomically.

Layout of a state folder (see docs/formats.md): `model.safetensors` (fp32 weights, under
transformers' names), `optimizer.safetensors`, `config.json`, the tokenizer's files,
`metrics.jsonl`, `state.json`, and the manifest, which is written last. transformers can load the
folder directly.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import CheckpointError, naming, reading
from biphasic.files import remove_partials, write_json
from biphasic.records import StateRecord
from biphasic.store import CHECKPOINT, STATE, Store, complete_folder, is_complete, read_state_record

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

STATE_FORMAT = "biphasic.state/1"
# Checkpoints of a segment that is not finished; during a save, one more is on disk.
KEPT_CHECKPOINTS = 2
LORA = "lora.safetensors"  # of a state during or after a phase with LoRA
_REMEDY = "delete the folder and run again"
# Pattern of checkpoints' folders; others beside them, such as copies, are left alone.
_STEPS = "step-" + 8 * "[0-9]"


@dataclass(frozen=True)
class Snapshot:
    """A state in memory."""

    weights: dict[str, Tensor]  # fp32 weights by name
    moments: dict[str, Tensor]  # the optimizer's tensors by name; empty before the first update
    record: StateRecord  # content of `state.json`
    metrics: str  # content of `metrics.jsonl`
    # What LoRA trains and the matrices below, by name, to go on with; empty without LoRA.
    lora: dict[str, Tensor] = field(default_factory=dict)


def save_state(
    folder: Path, snapshot: Snapshot, *, config: dict[str, Any], tokenizer: TextTokenizer
) -> None:
    """Write a state atomically."""
    with complete_folder(folder, identity=snapshot.record.identity) as partial:
        # safetensors marks the framework; transformers refuses files without it.
        save_tensors(snapshot.weights, partial / "model.safetensors", {"format": "pt"})
        save_tensors(snapshot.moments, partial / "optimizer.safetensors")
        if snapshot.lora:
            save_tensors(snapshot.lora, partial / LORA)
        _write_rest(partial, snapshot, config, tokenizer)


def save_divided(
    folder: Path,
    snapshot: Snapshot,
    *,
    config: dict[str, Any],
    tokenizer: TextTokenizer,
    group: ProcessGroup,
) -> None:
    """Write a checkpoint atomically, in which each rank of a group writes its own parts."""
    # All ranks call it. Tensors are DTensors on the CPU. torch's distributed checkpoints are
    # written as safetensors, which, unlike their default format, hold no pickle.
    from torch import distributed as dist  # noqa: PLC0415
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415

    def write(partial: str) -> None:
        writer = HuggingFaceStorageWriter(partial, save_distributed=True)
        tensors = {**snapshot.weights, **snapshot.moments}
        try:
            save(tensors, storage_writer=writer, process_group=group)
        except CheckpointException as error:  # holds what each rank met, with tracebacks
            raise next(cause for cause, _ in error.failures.values()) from None

    if dist.get_rank():
        # The first rank makes the folder, whose name is random, so the others must be told.
        told = [""]
        dist.broadcast_object_list(told, src=0, group=group)
        write(*told)
        return
    with complete_folder(folder, identity=snapshot.record.identity) as partial:
        dist.broadcast_object_list([str(partial)], src=0, group=group)
        write(str(partial))
        _write_rest(partial, snapshot, config, tokenizer)


def _write_rest(
    partial: Path, snapshot: Snapshot, config: dict[str, Any], tokenizer: TextTokenizer
) -> None:
    # `complete_folder` flushes all files together before it renames the folder.
    write_json(partial / "config.json", config, is_flushed=False)
    record = snapshot.record.model_dump(mode="json")
    write_json(partial / "state.json", record, is_flushed=False)
    (partial / "metrics.jsonl").write_text(snapshot.metrics, encoding="utf-8")
    tokenizer.save_with_model(partial)


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors by name."""
    from safetensors.torch import save_file  # noqa: PLC0415 - plans check states without torch

    # safetensors refuses tensors that are not contiguous, such as transposed ones.
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with naming(path):
        save_file(contiguous, path, metadata)


def load_state(folder: Path, *, identity: str, hashes: bool = True) -> Snapshot:
    """Read a state and verify its hashes."""
    # Without `hashes`, the caller has verified them.
    # A copied or renamed folder may hold another state, so the manifest's identity is compared,
    # too.
    STATE.open(folder, identity=identity, remedy=_REMEDY).verify(hashes=hashes)
    # The manifest vouches for the bytes, but not for what another program wrote.
    with reading(folder, CheckpointError, remedy=_REMEDY, failure="damaged"):
        weights, moments = _load_tensors(folder)
        snapshot = Snapshot(
            weights=weights,
            moments=moments,
            record=read_state_record(folder, identity=identity),
            metrics=(folder / "metrics.jsonl").read_text(encoding="utf-8"),
            lora=load_lora_of(folder),
        )
        _check(snapshot)
    return snapshot


def _check(snapshot: Snapshot) -> None:
    """Raise a ValueError if the parts of a state do not fit together."""
    # The next step adds its rows to this hash. Wrong digits would fail there, after the model was
    # built and probed.
    bytes.fromhex(snapshot.record.rows_sha256)
    if not all(isinstance(json.loads(line), dict) for line in snapshot.metrics.splitlines()):
        raise ValueError("metrics.jsonl: a line is not a JSON object")
    weights = {**snapshot.weights, **snapshot.lora}
    for name, tensor in snapshot.moments.items():
        weight, _, key = name.rpartition(".")
        if weight not in weights:
            raise ValueError(f"optimizer.safetensors: {name} belongs to no weight")
        # AdamW's count of updates is one number for each weight, whatever the weight's shape.
        if key != "step" and tensor.shape != weights[weight].shape:
            raise ValueError(f"optimizer.safetensors: {name} has another shape than its weight")


def _load_tensors(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return weights and moments, whole, from a state or a checkpoint of any number of ranks."""
    import torch  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # noqa: PLC0415
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    if (folder / "model.safetensors").is_file():
        return load_file(folder / "model.safetensors"), load_file(folder / "optimizer.safetensors")
    reader = HuggingFaceStorageReader(str(folder))
    tensors = {
        # NaN, so that numbers which no rank has written cannot be taken for weights.
        name: torch.full(each.size, math.nan, dtype=each.properties.dtype)
        for name, each in reader.read_metadata().state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
    }
    with warnings.catch_warnings():  # of a load by this process alone, which is what we want
        warnings.simplefilter("ignore", UserWarning)
        load(tensors, storage_reader=reader, no_dist=True)
    # A moment's name is that of its weight, with an end.
    moments = {name for name in tensors if name.rpartition(".")[0] in tensors}
    return (
        {name: tensor for name, tensor in tensors.items() if name not in moments},
        {name: tensor for name, tensor in tensors.items() if name in moments},
    )


def load_lora_of(folder: Path) -> dict[str, Tensor]:
    """Read what continues LoRA in a state; empty without LoRA."""
    from safetensors.torch import load_file  # noqa: PLC0415

    return load_file(folder / LORA) if (folder / LORA).is_file() else {}


def find_state(store: Path, identity: str) -> StateRecord | None:
    """Read the record of a state of a store; None if it is missing or incomplete."""
    if not Store(store).has(STATE, identity):
        return None
    return Store(store).state(identity)


class Checkpoints:
    """Checkpoints within a segment; the newest two are kept until the segment's state exists."""

    # The older one is for a damaged newer one, which is reported and never skipped silently.

    def __init__(self, folder: Path) -> None:
        """Manage the checkpoints in `folder`."""
        self._folder = folder

    @classmethod
    def of(cls, store: Path, identity: str, *, start: int) -> Checkpoints:
        """Return the checkpoints of the segment from `start` to the state `identity`."""
        # Studies with other checkpoints along the way may reach one state from other starts, and a
        # checkpoint records the start as its parent.
        return cls(store / "progress" / f"{identity}-from-{start}")

    def remove_partials(self) -> None:
        """Delete incomplete files of an interrupted run; call only from the segment's own run."""
        remove_partials(self._folder)

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, newest first."""
        folders = filter(is_complete, self._folder.glob(_STEPS))
        return sorted((int(path.name.removeprefix("step-")) for path in folders), reverse=True)

    def latest_step(self) -> int | None:
        """Return the step of the newest complete checkpoint."""
        return next(iter(self.steps()), None)

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self._folder / f"step-{step:08d}"

    def verify(self, step: int) -> None:
        """Verify the files of a checkpoint."""
        try:
            CHECKPOINT.open(self.path(step)).verify()
        except CheckpointError:
            # Older checkpoints are read only now: hashing one takes as long as reading all of its
            # weights.
            older = (path for path in map(self.path, self.steps()) if path < self.path(step))
            intact = next((path.name for path in older if _is_intact(path)), None)
            remedy = (
                f"no older checkpoint is intact: delete the folder {self._folder} and run again"
                if intact is None
                else f"the checkpoint before it, {intact}, is intact: to resume from there, "
                f"delete the folder {self.path(step)} and run again"
            )
            CHECKPOINT.open(self.path(step), remedy=remedy).verify()

    def drop_old(self) -> None:
        """Delete all checkpoints except the newest two, and remains of interrupted deletions."""
        # Only complete ones count, so a half-deleted folder never takes the place of a whole one.
        kept = {self.path(step) for step in self.steps()[:KEPT_CHECKPOINTS]}
        for folder in set(self._folder.glob(_STEPS)) - kept:
            shutil.rmtree(folder)

    def clear(self) -> None:
        """Delete all checkpoints of the finished segment."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _is_intact(checkpoint: Path) -> bool:
    try:
        CHECKPOINT.open(checkpoint).verify()
    except CheckpointError:
        return False
    return True
