"""Faults: updates whose loss or gradient is not finite, and the record that reproduces them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from biphasic.data.rows import RowBatch
from biphasic.errors import DivergedError
from biphasic.files import PARTIAL, write_json
from biphasic.store import CHECKPOINT, STATE, Store
from biphasic.training.lineage import Lineage
from biphasic.training.metrics_log import environment
from biphasic.training.run import Run
from biphasic.training.state import Checkpoints
from biphasic.training.step.input import StepInput
from biphasic.training.step.pending import StepReport

FAULT = "fault.json"
FAULT_FORMAT = "biphasic.fault/1"
_LINES_BEFORE = 10


def save_fault(
    run: Run, fault: StepReport, given: StepInput, loss: Tensor, *, checkpoint: Path, start: int
) -> DivergedError:
    """Write the record of an update that is not finite, and return the error that names it.

    Only the first rank writes.

    Args:
        run: The run before the update, with the gradients of `given`, which are cleared.
        fault: The update, as it was computed first.
        given: Its input.
        loss: Its loss, computed again with the gradients.
        checkpoint: Folder of the checkpoint before the update.
        start: First step of the segment, whose state needs no checkpoint.
    """
    norms = run.optimizer.weights.norms()
    run.optimizer.weights.forget_gradients()
    norm = math.hypot(*norms.values())
    again = {"loss": float(loss), "gradient_norm": norm}
    folder = checkpoint.parent / "faults" / checkpoint.name
    is_reproduced = not all(map(math.isfinite, again.values()))
    error = _error(run.step, str(fault.fault), folder, is_reproduced=is_reproduced)
    if run.ranks.is_first:
        recipe, ground = run.lineage.recipe, run.lineage.fingerprint
        placed = recipe.phase_at(run.step)
        record = {
            "format": FAULT_FORMAT,
            "error": str(error),
            "step": run.step,
            "phase": placed.index,
            "objective": placed.objective(run.step).identity(recipe.seeds.mask_seed),
            "learning_rate": fault.learning_rate,
            "loss": fault.loss,
            "gradient_norm": fault.gradient_norm,
            "again": {**again, "is_finite": not is_reproduced},
            "gradient_norms": {"layers": _by_layer(norms), "parameters": norms},
            "steps_before": [line for line in run.log.read() if "loss" in line][-_LINES_BEFORE:],
            "continues_from": {
                "step": run.step,
                "identity": run.lineage.identities[run.step],
                "folder": _origin(run, checkpoint, folder, start=start),
            },
            "rows": {
                "corpus_hash": ground.hash_of(placed.corpus),
                "data_seed": recipe.seeds.data_seed,
                "sha256": given.sha256.hex(),
                "supervised_tokens": given.num_supervised,
                "pieces": _pieces(given.batch),
            },
            "recipe": recipe.model_dump(mode="json"),
            "ground": asdict(ground),
            "compute": run.compute.model_dump(mode="json"),
            "environment": environment(),
        }
        # Numbers that are not finite become text: `NaN`, `Infinity`, `-Infinity`.
        write_json(folder / FAULT, json.loads(json.dumps(record), parse_constant=str))
    return error


def bring_checkpoint(
    lineage: Lineage, store: Path, progress: Checkpoints, *, start: int, end: int
) -> None:
    """Link the checkpoint before a skipped step from the run that stopped there."""
    # That run skips fewer steps, so its later states, and its folder, have other identities.
    # Without such a run, or if this one has a checkpoint already, nothing happens.
    if progress.latest_step() is not None:
        return
    recipe = lineage.recipe
    inside = [step for step in recipe.skip_steps if start <= step < end]
    for first in reversed(inside):
        fewer = tuple(step for step in recipe.skip_steps if step < first or step >= end)
        other = Lineage(recipe.model_copy(update={"skip_steps": fewer}), lineage.fingerprint)
        checkpoints = Checkpoints.of(store, other.identities[end], start=start)
        step = checkpoints.latest_step()
        if step is not None and step <= first:
            folder, identity = checkpoints.path(step), lineage.identities[step]
            CHECKPOINT.open(folder, identity=identity).verify()
            target = progress.path(step)
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{PARTIAL}{target.name}")
            shutil.copytree(folder, partial, copy_function=_link_file)
            partial.rename(target)
            return


def _link_file(file: str, target: str) -> None:
    try:
        os.link(file, target)
    except OSError:  # the file system has no hard links
        shutil.copy2(file, target)


def _error(step: int, what: str, folder: Path, *, is_reproduced: bool) -> DivergedError:
    more = (
        f", or skip the step with --skip-step {step} (skip_steps: [{step}] in a recipe or study); "
        f"the weights before it are saved, and {folder} describes it"
    )
    if not is_reproduced:
        more += "; computed again it was finite, so run again first: the hardware may be at fault"
    return DivergedError.at(step, what, more)


def _by_layer(norms: Mapping[str, float]) -> dict[str, float]:
    """Return the norms of layers: of a name up to its number, or of modules outside of them."""
    layers: dict[str, list[float]] = {}
    for name, norm in norms.items():
        numbered = re.match(r".*?\.\d+(?=\.)", name)
        layer = numbered[0] if numbered else name.rpartition(".")[0]
        layers.setdefault(layer, []).append(norm)
    return {layer: math.hypot(*parts) for layer, parts in layers.items()}


def _pieces(batch: RowBatch) -> list[str]:
    """Describe each row: `EPOCH:DOCUMENT:START-END` for each of its pieces, in order."""
    rows: list[list[tuple[int, str]]] = [[] for _ in range(batch.packed.num_rows)]
    for piece, (start, _) in zip(batch.pieces, batch.texts.tolist(), strict=True):
        row, place = divmod(start, batch.packed.row_length)
        text = f"{piece.epoch}:{piece.document}:{piece.start}-{piece.end}"
        rows[row].append((place, text))
    return [" ".join(text for _, text in sorted(row)) for row in rows]


def _origin(run: Run, checkpoint: Path, folder: Path, *, start: int) -> str | None:
    """Return the folder of the weights before the update, relative to the record's."""
    if run.step > start:
        return os.path.relpath(checkpoint, folder)
    if run.parent is None:
        return None  # the initial model, which the recipe makes
    return os.path.relpath(Store(checkpoint.parents[2]).folder(STATE, run.parent), folder)
