"""A run in progress: model, optimizer and records between two updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from biphasic.distributed import Activity, ProcessGroup
from biphasic.errors import ConfigError, DivergedError, ModelError
from biphasic.model.compute.device import on_compute_device
from biphasic.model.compute.forward import first_position
from biphasic.model.compute.layers import (
    compile_layers,
    narrow_last_layer,
    recompute_activations,
    uncompiled,
)
from biphasic.model.contract import check_contract
from biphasic.model.head import has_head
from biphasic.model.loading.build import (
    architecture_config,
    load_pretrained,
    load_weights,
    new_model,
    saved_buffers,
    stores_head,
)
from biphasic.model.loading.configurations import extend_config, extend_context
from biphasic.model.loading.hub import check_model
from biphasic.model.loading.reading import loading, read_config
from biphasic.model.lora import add_lora, load_lora, lora_targets, require_peft, split_lora
from biphasic.numerics import running_code
from biphasic.objectives.phases import loss_units, uses_of_head
from biphasic.plugins import named_plugins
from biphasic.records import HeldoutLine, LedgerEntry, StateRecord
from biphasic.seeds import derive_seed
from biphasic.store import state_folder
from biphasic.training import CHECKPOINT_EVERY, HELDOUT_EVERY, HELDOUT_OBJECTIVES
from biphasic.training.compute import ComputeConfig
from biphasic.training.heldout import HeldoutLoss, HeldoutPairs, Measures
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.metrics_log import MetricsLog, changed_settings, environment
from biphasic.training.recipe import Recipe
from biphasic.training.state import (
    STATE_FORMAT,
    Checkpoints,
    Snapshot,
    load_state,
    save_divided,
    save_state,
)
from biphasic.training.step.divided import DividedModel, DividedWeights, divide
from biphasic.training.step.optimizer import (
    Optimizer,
    freeze,
    frozen_names,
    layer_matrices,
    set_precision,
)
from biphasic.training.step.pending import Position, StepReport
from biphasic.training.timeline import PlacedPhase

Judge = Callable[[PreTrainedModel, Sequence[LedgerEntry]], float]


@dataclass(frozen=True)
class RunOptions:
    """Settings that change no number of a finished state, except by rounding."""

    # Updates between checkpoints; 0 saves only the final state.
    checkpoint_every: int = CHECKPOINT_EVERY
    # Updates between held-out evaluations; 0 evaluates only the final state.
    heldout_every: int = HELDOUT_EVERY
    # Objectives whose held-out loss is recorded.
    heldout_objectives: tuple[str, ...] = HELDOUT_OBJECTIVES
    # Returns the model's accuracy on minimal pairs, recorded with each held-out loss.
    judge: Judge | None = None
    tensorboard: Path | None = None  # folder for event files; None writes none
    # Called for each update, in order, after its loss has been read back.
    report: Callable[[StepReport], None] | None = None
    # Called with a short text on work beside updates, such as a held-out evaluation.
    describe: Callable[[str], None] | None = None
    # Called with a line that users should see, such as a loss spike.
    warn: Callable[[str], None] | None = None
    # Called after each update; if true, the run saves a checkpoint and stops.
    should_stop: Callable[[], bool] | None = None
    compute: ComputeConfig = field(default_factory=ComputeConfig)

    def warn_of(self, texts: Iterable[str]) -> None:
        """Report lines that users should see."""
        for text in texts:
            if self.warn:
                self.warn(text)


@dataclass
class Run:
    """Everything that outlives one update."""

    lineage: Lineage
    data: TrainingData
    compute: ComputeConfig
    ranks: ProcessGroup
    model: PreTrainedModel
    optimizer: Optimizer
    divided: DividedModel | None
    log: MetricsLog
    parent: str | None
    code: tuple[str, ...]  # hashes of the code that made it, from step 0 on
    position: Position = field(default_factory=Position)  # what it has read so far
    seconds: float = 0.0
    changes: tuple[str, ...] = ()  # earlier changes of versions or hardware, as in a state's record
    change: str = ""  # what has changed since the checkpoint or state that it continues from

    @property
    def step(self) -> int:
        """Updates that are done."""
        return self.position.step

    def enter(self, phase: PlacedPhase) -> None:
        """Prepare for a phase, at its first or any later update."""
        extend_context(self.model, max_seqlen=phase.longest, rope_theta=phase.rope_theta)
        if phase.phase.lora is None:  # else all but its additions is frozen
            freeze(self.model, phase.phase.freeze)
        if phase.resets_optimizer(self.step):
            self.optimizer.forget()

    def watch(
        self, heldout: HeldoutLoss, pairs: HeldoutPairs, own: Measures, options: RunOptions
    ) -> None:
        """Record the held-out losses, with the same code in every run."""
        # All ranks compute them from the same rows, as they gather weights together. `own` is as in
        # `HeldoutLoss.evaluate`.

        def note(text: str) -> None:
            self.ranks.heartbeat.at(Activity.HELDOUT)
            if options.describe:
                options.describe(text)

        # Held-out rows have other shapes. Each would be compiled, for a pass that runs seldom.
        with uncompiled() if self.compute.compile else nullcontext():
            losses = heldout.evaluate(
                self.model,
                rows_per_pass=self.compute.rows_per_pass(self.lineage.recipe.max_seqlen),
                objectives=options.heldout_objectives if has_head(self.model) else (),
                own=own if has_head(self.model) else {},
                report=note,
                loss=self.divided,
            )
            losses |= pairs.evaluate(self.model, step=self.step, report=note, loss=self.divided)
            accuracy = None
            if options.judge is not None:
                note("minimal pairs")
                accuracy = options.judge(self.model, self.position.ledger)
        # Without a backward pass, FSDP keeps the weights that it has gathered.
        if self.divided is not None:
            self.divided.settle()
        if not all(map(math.isfinite, losses.values())):
            # Training checks the loss and gradients of each step before its update. Damage by the
            # last update is seen only here.
            raise DivergedError.at(self.step - 1, "held-out loss after it")
        if not losses and accuracy is None:  # a model without a head has none
            return
        self.log.write(
            HeldoutLine(
                step=self.step,
                tokens=self.position.tokens,
                heldout=losses,
                minimal_pairs=accuracy,
            )
        )

    def save(self, folder: Path) -> None:
        """Write the current state, whole, from the first rank."""
        self.ranks.heartbeat.at(Activity.SAVING)
        self.require_agreement()
        # All ranks take part, as a rank alone has only its parts.
        snapshot = self._snapshot(self.optimizer.weights.whole)
        if self.ranks.is_first:
            save_state(folder, snapshot, config=self._config(), tokenizer=self.data.tokenizer)

    def checkpoint(self, folder: Path) -> Callable[[], None]:
        """Copy the current state, and return the function that writes it, to be run in a thread."""
        self.ranks.heartbeat.at(Activity.SAVING)
        self.require_agreement()
        # Copies are made now, since the next update changes the weights while the thread still
        # writes.
        save, weights = save_state, self.optimizer.weights
        if isinstance(weights, DividedWeights):
            save = partial(save_divided, group=weights.writers)
        snapshot = self._snapshot(weights.host_copies)
        return partial(save, folder, snapshot, config=self._config(), tokenizer=self.data.tokenizer)

    def _snapshot(self, taken: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Snapshot:
        """Return the current state, with what `taken` returns for weights and moments."""
        record = StateRecord(
            format=STATE_FORMAT,
            identity=self.lineage.identities[self.step],
            step=self.step,
            parent=self.parent,
            recipe=self.lineage.recipe.model_dump(mode="json"),
            ground=asdict(self.lineage.fingerprint),
            heldout=self.log.heldout,
            loss_units=loss_units(self.lineage.recipe.phases),
            heldout_sha256=self.data.heldout.content_hash,
            rows_sha256=self.position.rows_sha256,
            ledger=self.position.ledger,
            seconds=self.seconds,
            environment=environment(),
            compute=self.compute.model_dump(mode="json"),
            changes=(*self.changes, *filter(None, [self.change])),
            code=self.code,
            plugins=named_plugins(self.lineage.recipe),
        )
        # Buffers, such as biases of routers, are no parameters, so the optimizer's weights lack
        # them.
        buffers = {name: buffer.to("cpu") for name, buffer in saved_buffers(self.model).items()}
        weights, lora = split_lora(self.model, taken(self.optimizer.weights.masters))
        return Snapshot(
            weights={**weights, **buffers},
            moments=taken(self.optimizer.state_tensors()),
            record=record,
            metrics=self.log.text(),
            lora=lora,
        )

    def _config(self) -> dict[str, Any]:
        # The path it was loaded from is private, and would differ after a resume.
        return {**self.model.config.to_dict(), "_name_or_path": ""}

    def require_agreement(self) -> None:
        """Check that all ranks have bitwise the same weights."""
        if not self.ranks.is_alone:
            weights = self.optimizer.weights.checksum()
            self.ranks.require_same(weights, what=f"the weights after {self.step} steps")


def resume_or_start(
    lineage: Lineage,
    data: TrainingData,
    store: Path,
    progress: Checkpoints,
    options: RunOptions,
    *,
    start: int,
    end: int,
    ranks: ProcessGroup,
) -> Run:
    """Load the latest checkpoint of a segment or its start state, or initialize a new run."""
    # All ranks load what the first rank found.
    recipe, identities = lineage.recipe, lineage.identities
    # Each for itself might find another checkpoint, e.g. in a folder that shows new files late.
    latest = _latest_step(progress, ranks)
    step = start if latest is None else latest
    if step == 0:
        snapshot, model = None, first_model(recipe, data)
    else:
        if latest is None:
            folder = state_folder(store, identities[start])
        else:
            folder = progress.path(latest)
            progress.verify(latest)
        # `progress.verify` has just hashed the files of a checkpoint. Once is enough.
        snapshot = load_state(folder, identity=identities[step], hashes=latest is None)
        model = saved_model(folder, snapshot)
    # A segment logs its own steps. After a checkpoint it goes on with its log; after another
    # segment's state it starts one.
    lines = [] if snapshot is None or latest is None else snapshot.metrics.splitlines()
    check_phases_with(model, recipe)
    # The weights of a pretrained model were probed before the text was read.
    probed = data.pretrained.identity if data.pretrained and step == 0 else None
    # Before LoRA: the probes read a model of transformers' own modules.
    _check_directions(on_compute_device(model), recipe, weights=probed)
    placed = recipe.phase_at(step) if step < end else None
    if placed is not None and placed.phase.lora is not None:
        seed = derive_seed(f"lora-{placed.start}", recipe.seeds.init_seed)
        add_lora(model, placed.phase.lora, seed=seed, mask_id=data.tokenizer.mask_id)
        if snapshot is not None and step > placed.start:
            load_lora(model, snapshot.lora)
    optimizer, divided = _trainable(model, recipe, options.compute, ranks)
    run = Run(
        lineage=lineage,
        data=data,
        compute=options.compute,
        ranks=ranks,
        model=model.train(),
        optimizer=optimizer,
        divided=divided,
        log=MetricsLog(lines, options.tensorboard if ranks.is_first else None, next_step=step + 1),
        parent=identities[start] if start else None,
        code=(running_code("pretraining"),),
    )
    if snapshot is not None:
        if placed is not None and not placed.resets_optimizer(step):
            run.optimizer.load_state_tensors(snapshot.moments)
        _resume(run, snapshot.record, is_checkpoint=latest is not None)
    run.require_agreement()
    return run


def _trainable(
    model: PreTrainedModel,
    recipe: Recipe,
    compute: ComputeConfig,
    ranks: ProcessGroup,
) -> tuple[Optimizer, DividedModel | None]:
    """Set a model's precision, divide it over the ranks, and return its optimizer."""
    weights = set_precision(model, recipe.precision)
    if recipe.precision != "fp32":  # uses other kernels
        _check_directions(model, recipe)
    if compute.predicted_only:
        narrow_last_layer(model)
    divided = None if ranks.is_alone else divide(model, weights, compute)
    if divided is not None:
        weights = DividedWeights(divided)
    optimizer = Optimizer(weights, recipe.optimizer, layer_matrices=layer_matrices(model))
    if compute.activation_checkpointing:
        recompute_activations(model)
    if compute.compile:
        compile_layers(model)
    return optimizer, divided


def _resume(run: Run, record: StateRecord, *, is_checkpoint: bool) -> None:
    """Continue with the record of a checkpoint, or of the segment's first state."""
    run.position = Position(record.step, record.rows_sha256, record.ledger)
    # A state is made by all code that has trained it, also by versions before a resume.
    run.code = tuple(dict.fromkeys((*record.code, *run.code)))
    run.changes = record.changes
    changed = changed_settings(record, run.compute.model_dump(mode="json"))
    run.change = f"step {record.step}: {changed}" if changed else ""
    # Seconds are those of one segment; a state's belong to the segment before.
    if is_checkpoint:
        run.seconds = record.seconds


def _latest_step(progress: Checkpoints, ranks: ProcessGroup) -> int | None:
    """Return the step of the newest checkpoint that the first rank finds in the store."""
    seen = progress.latest_step()
    step = ranks.from_first(-1 if seen is None else seen)
    return None if step < 0 else step


def check_phases_with(model: PreTrainedModel, recipe: Recipe) -> None:
    """Raise errors of all phases that show with the model, before any work."""
    names = dict(model.named_parameters())
    for placed in recipe.placed_phases:
        if placed.phase.needs_head and not has_head(model):
            raise ConfigError(
                f"phases.{placed.index}.objective: {placed.phase.short_name} needs a "
                "language-model head, and the model was saved without one; train it on pairs"
            )
        try:
            frozen_names(names, placed.phase.freeze)
            if placed.phase.lora is not None:
                require_peft()
                lora_targets(model, placed.phase.lora)
        except ConfigError as error:
            raise ConfigError(f"phases.{placed.index}.{error}") from None
        config, first = deepcopy(model.config), first_position(model)
        extend_config(config, first=first, max_seqlen=placed.longest, rope_theta=placed.rope_theta)


def _check_directions(
    model: PreTrainedModel, recipe: Recipe, *, weights: str | None = None
) -> None:
    """Probe the attention of all phases first, as an error should not end a run midway."""
    for causal in sorted({way for phase in recipe.phases for way in phase.directions}):
        check_contract(model, causal=causal, weights=weights)


def first_model(recipe: Recipe, data: TrainingData) -> PreTrainedModel:
    """Return the initial model of a recipe, in fp32."""
    if recipe.architecture is not None:
        config = architecture_config(
            recipe.architecture,
            vocab_size=data.tokenizer.vocab_size,
            max_seqlen=recipe.max_seqlen,
            special_ids=data.tokenizer.special_ids,
        )
        return new_model(config, init_seed=recipe.seeds.init_seed)
    if data.pretrained is None:
        raise ModelError("the recipe starts from a pretrained model, but none was opened for it")
    folder = data.pretrained.folder
    if data.pretrained.revision is None:  # the hub's cache of a commit never changes
        check_model(folder, data.pretrained.identity, remedy="run the command again")
    # If no phase reads a head, a model that was saved without one is loaded all the same.
    uses = uses_of_head(recipe.phases)
    return load_pretrained(folder, num_embeddings=data.tokenizer.vocab_size, head_for=uses)


def saved_model(folder: Path, snapshot: Snapshot) -> PreTrainedModel:
    """Return the model of a state or checkpoint, in fp32."""
    config = read_config(folder)
    with loading(folder):
        with_head = stores_head(config, snapshot.weights)
        # Any seed does: `load_weights` replaces all numbers.
        model = new_model(config, init_seed=0, with_head=with_head)
    load_weights(model, snapshot.weights)
    return model
