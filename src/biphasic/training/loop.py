"""The training loop: from one state of a recipe to a later one."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from biphasic.data.corpus import Corpus
from biphasic.data.rows import RowBatch, RowPlan, RowReader
from biphasic.data.tokenizer import TextTokenizer
from biphasic.errors import CheckpointError, TrainingError
from biphasic.files import is_complete
from biphasic.model.build import architecture_config, new_model
from biphasic.model.contract import check_contract
from biphasic.model.device import on_compute_device
from biphasic.objectives.phases import Phase
from biphasic.objectives.supervision import Vocabulary
from biphasic.training.environment import environment
from biphasic.training.heldout import HeldoutLoss
from biphasic.training.ledger import Ledger, step_flops
from biphasic.training.log import MetricsLog
from biphasic.training.lr import learning_rate
from biphasic.training.memory import release_excess
from biphasic.training.optimizer import Optimizer, set_precision
from biphasic.training.recipe import Ground, Lineage, Recipe
from biphasic.training.state import (
    STATE_FORMAT,
    Progress,
    Snapshot,
    load_state,
    metrics_lines,
    save_state,
)
from biphasic.training.supervised import summed_loss


@dataclass(frozen=True)
class TrainingData:
    """The data that a recipe trains and is watched on."""

    corpus: Corpus
    heldout: Corpus
    tokenizer: TextTokenizer

    @property
    def ground(self) -> Ground:
        """What identities know of the data."""
        return Ground(
            corpus_hash=self.corpus.content_hash,
            tokenizer_sha256=self.tokenizer.sha256,
            vocab_size=self.tokenizer.vocab_size,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """What objectives know of the tokenizer."""
        special_ids = frozenset(self.tokenizer.special_ids.values())
        return Vocabulary(self.tokenizer.vocab_size, self.tokenizer.mask_id, special_ids)


@dataclass(frozen=True)
class StepReport:
    """What the watcher of a run is told after each update."""

    step: int
    end: int
    loss: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class RunOptions:
    """What changes no number of a finished state: cadence, views, and how a batch is split.

    Attributes:
        checkpoint_every: Updates between checkpoints; 0 writes only the last state.
        heldout_every: Updates between held-out evaluations; 0 evaluates only the last state.
        tensorboard: Folder for event files; None writes none.
        report: Called after each update.
    """

    checkpoint_every: int = 200
    heldout_every: int = 0
    tensorboard: Path | None = None
    report: Callable[[StepReport], None] | None = None


@dataclass
class _Run:
    """Everything that outlives one update."""

    lineage: Lineage
    data: TrainingData
    config: PretrainedConfig
    model: PreTrainedModel
    optimizer: Optimizer
    ledger: Ledger
    log: MetricsLog
    parent: str | None
    step: int
    rows_sha256: str
    seconds: float


def train_segment(
    lineage: Lineage,
    data: TrainingData,
    store: Path,
    *,
    start: int,
    end: int,
    options: RunOptions = RunOptions(),
) -> Path:
    """Train from the state after `start` updates to the state after `end`, and save it.

    An interrupted segment goes on from its latest checkpoint; interrupted or not, the resulting
    weights are the same to the last bit on a CPU.

    Args:
        lineage: The recipe on its data.
        data: The data themselves.
        store: Folder whose `states/` holds states by identity.
        start: 0, or a step whose state is in the store.
        end: A later step, or 0 for the untrained model.
        options: Cadence and views.

    Returns:
        The folder of the state after `end` updates.

    Raises:
        TrainingError: Loss or gradient are not finite.
        CheckpointError: A state that this run needs is damaged.
        ModelError: The model breaks the attention contract.
    """
    identities, recipe = lineage.identities, lineage.recipe
    target = store / "states" / identities[end]
    progress = Progress.of(store, identities[end], start=start)
    if is_complete(target):
        progress.clear()
        return target
    progress.remove_partials()
    run = _resume_or_start(lineage, data, store, progress, start=start, options=options)
    heldout = _heldout(recipe, data)
    plan = RowPlan(data.corpus.lengths, recipe.legs, data_seed=recipe.seeds.data_seed)
    rows = RowReader(data.corpus, plan, data.tokenizer.special_ids)
    probed: int | None = None
    while run.step < end:
        index, phase = recipe.phase_at(run.step)
        if index != probed:
            check_contract(run.model, causal=phase.causal)
            probed = index
        report = _update(run, index, phase, rows.batch(run.step), end=end)
        release_excess()
        if options.heldout_every and run.step % options.heldout_every == 0 and run.step < end:
            _watch(run, heldout)
        if options.checkpoint_every and run.step % options.checkpoint_every == 0 and run.step < end:
            _save(run, progress.path(run.step))
            progress.drop_before(run.step)
        if options.report:
            options.report(report)
    _watch(run, heldout)
    _save(run, target)
    run.log.close()
    progress.clear()
    return target


def _update(run: _Run, index: int, phase: Phase, batch: RowBatch, *, end: int) -> StepReport:
    """Make one update: labels, loss summed and divided once, gradient, weights, records."""
    began = time.monotonic()
    recipe = run.lineage.recipe
    vocabulary = run.data.vocabulary
    supervision = phase.supervise(batch, vocabulary, mask_seed=recipe.seeds.mask_seed)
    num_supervised = len(supervision.labels)
    rate = learning_rate(recipe.learning_rate, run.step, total_steps=recipe.total_steps)

    loss = summed_loss(run.model, batch, supervision, causal=phase.causal) / num_supervised
    if not torch.isfinite(loss):
        raise TrainingError(f"step {run.step}: the loss is not finite; lower the learning rate")
    loss.backward()
    run.optimizer.weights.gather_gradients()
    norm = run.optimizer.step(rate)

    run.step += 1
    run.rows_sha256 = hashlib.sha256(bytes.fromhex(run.rows_sha256) + batch.sha256()).hexdigest()
    run.ledger.add(
        phase=index,
        objective=phase.objective,
        batch=batch,
        supervised_tokens=num_supervised,
        flops=step_flops(
            recipe.architecture,
            vocab_size=vocabulary.size,
            batch=batch,
            supervised_tokens=num_supervised,
            causal=phase.causal,
        ),
    )
    seconds = time.monotonic() - began
    run.seconds += seconds
    run.log.write(
        {
            "step": run.step,
            "phase": index,
            "objective": phase.objective,
            "loss": loss.item(),
            "learning_rate": rate,
            "gradient_norm": norm,
            "tokens": run.ledger.tokens,
            "supervised_tokens": num_supervised,
            "tokens_per_second": round(batch.packed.num_tokens / seconds, 1),
        }
    )
    return StepReport(
        step=run.step,
        end=end,
        loss=loss.item(),
        tokens=batch.packed.num_tokens,
        seconds=seconds,
    )


def _watch(run: _Run, heldout: HeldoutLoss) -> None:
    """Record the held-out losses."""
    record = {"step": run.step, "tokens": run.ledger.tokens, "heldout": heldout.evaluate(run.model)}
    run.log.write(record)


def _resume_or_start(
    lineage: Lineage,
    data: TrainingData,
    store: Path,
    progress: Progress,
    *,
    start: int,
    options: RunOptions,
) -> _Run:
    """Load the latest checkpoint of the segment, or the state it starts from, or begin anew."""
    recipe, identities = lineage.recipe, lineage.identities
    config = model_config(recipe, data.tokenizer)
    model = new_model(config, init_seed=recipe.seeds.init_seed)
    snapshot: Snapshot | None = None
    lines: list[str] = []
    latest = progress.latest_step()
    if latest is not None:
        snapshot = load_state(progress.path(latest), identity=identities[latest])
        lines = metrics_lines(snapshot.metrics)
    elif start:
        snapshot = load_state(store / "states" / identities[start], identity=identities[start])
    if snapshot:
        _load_weights(model, snapshot)
    weights = set_precision(on_compute_device(model), recipe.precision)
    optimizer = Optimizer(weights, **recipe.optimizer.model_dump())
    if snapshot:
        optimizer.load_state_tensors(snapshot.moments)
    details: dict[str, Any] = snapshot.details if snapshot else {}
    step = details.get("step", 0)
    return _Run(
        lineage=lineage,
        data=data,
        config=config,
        model=model.train(),
        optimizer=optimizer,
        ledger=Ledger(details.get("ledger")),
        log=MetricsLog(lines, options.tensorboard, next_step=step + 1),
        parent=identities[start] if start else None,
        step=step,
        rows_sha256=details.get("rows_sha256", hashlib.sha256(b"").hexdigest()),
        seconds=details["seconds"] if latest is not None else 0.0,
    )


def _load_weights(model: PreTrainedModel, snapshot: Snapshot) -> None:
    try:
        model.load_state_dict(snapshot.weights, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"a state does not fit its model: {error}") from None


def _save(run: _Run, folder: Path) -> None:
    heldout = [line for line in map(json.loads, run.log.lines) if "heldout" in line]
    details = {
        "format": STATE_FORMAT,
        "identity": run.lineage.identities[run.step],
        "step": run.step,
        "parent": run.parent,
        "recipe": run.lineage.recipe.model_dump(mode="json"),
        "ground": asdict(run.lineage.ground),
        "heldout": heldout[-1]["heldout"] if heldout else None,
        "heldout_sha256": run.data.heldout.content_hash,
        "rows_sha256": run.rows_sha256,
        "ledger": run.ledger.dump(),
        "seconds": run.seconds,
        "environment": environment(),
    }
    snapshot = Snapshot(
        weights=run.optimizer.weights.masters,
        moments=run.optimizer.state_tensors(),
        details=details,
        metrics=run.log.text(),
    )
    save_state(folder, snapshot, config=run.config.to_dict(), tokenizer=run.data.tokenizer)


def _heldout(recipe: Recipe, data: TrainingData) -> HeldoutLoss:
    return HeldoutLoss(
        data.heldout,
        max_seqlen=recipe.max_seqlen,
        rows_per_batch=recipe.rows_per_step,
        special_ids=data.tokenizer.special_ids,
        vocabulary=data.vocabulary,
    )


def model_config(recipe: Recipe, tokenizer: TextTokenizer) -> PretrainedConfig:
    """Return the configuration of a recipe's model."""
    return architecture_config(
        recipe.architecture,
        vocab_size=tokenizer.vocab_size,
        max_seqlen=recipe.max_seqlen,
        special_ids=tokenizer.special_ids,
    )
