"""Adapt a decoder or encoder: continue training it as a text encoder, and export it.

Continuing a pretrained decoder with masked language modelling is the cheapest known way to a strong
encoder (arXiv 2507.00994, section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from rich.console import Console

from biphasic.amounts import rate
from biphasic.config import Config, parse_config
from biphasic.data.building.config import CorpusConfig
from biphasic.errors import ConfigError
from biphasic.export.output import find_made, refuse_existing
from biphasic.export.write import Format, check_format, export_inputs, write_export
from biphasic.model.checks.limits import model_limits
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.model.loading.reading import read_config
from biphasic.objectives.lr import LearningRateConfig
from biphasic.plugin_code import look_in
from biphasic.progress import progress_bar, say_on
from biphasic.study.inputs.corpus import DataPaths, corpus_settings, locate_corpus, prepare_corpus
from biphasic.study.inputs.models import (
    Continuation,
    check_model,
    find_continuation,
    is_state,
)
from biphasic.study.plan.finished import OtherCode
from biphasic.study.spec.resolved import recipe_text
from biphasic.study.training import parse_compute, train_recipe
from biphasic.training.compute import ComputeConfig
from biphasic.training.intervals import HELDOUT_OBJECTIVES
from biphasic.training.lineage import Lineage
from biphasic.training.memory import tune_allocator
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.registry import AnyOptimizer
from biphasic.training.recipe import Precision, Recipe, SkippedSteps

# Default peak learning rate times hidden size: 4e-4 at 1,024. See docs/adapt.md.
PEAK_TIMES_WIDTH = 0.4
WARMUP_SHARE = 0.05  # share of all steps: new optimizer moments must not damage pretrained weights
DECAY_SHARE = 0.1  # share of all steps, at the end
MAX_SEQLEN = 512  # default row length in tokens, if the model allows it
ROWS_PER_STEP = 32  # default rows per batch

_NOT_CONTINUED = (
    "the state's run cannot be continued: the text differs, or no recipe ends with the state (it "
    "is within a decay, or of another version); it is used as a pretrained model, with new "
    "optimizer moments"
)
_OWN_RUN = """\
# The model is a state. On the text of its own run, training continues that run: it reads new rows,
# and the run's settings replace the defaults above.
"""
LEAST_TOKENS = 1 << 20  # minimum tokens of text, even for short training: some of it is held out


class AdaptConfig(Config):
    """Settings of an adaptation, as arguments of `adapt`. None is derived from the model."""

    steps: PositiveInt
    objective: Literal["mlm", "mntp"]
    mlm_probability: Annotated[float, Field(gt=0, le=1)] = 0.4
    learning_rate: PositiveFloat | None = None
    warmup_steps: NonNegativeInt | None = None
    decay_steps: NonNegativeInt | None = None
    optimizer: AnyOptimizer | None = None
    optimizer_state: Literal["keep", "reset"] = "keep"
    max_seqlen: PositiveInt | None = None
    rows_per_step: PositiveInt | None = None
    precision: Precision | None = None
    seed: NonNegativeInt | None = None
    skip_steps: SkippedSteps = ()  # They count from the start of a state's run.

    @classmethod
    def of(cls, *, optimizer: Any, reset_optimizer: bool, **given: Any) -> AdaptConfig:
        """Return the settings among the arguments of `adapt`."""
        given["optimizer"] = {"name": optimizer} if isinstance(optimizer, str) else optimizer
        given["optimizer_state"] = "reset" if reset_optimizer else None
        known = {name: given.get(name) for name in cls.model_fields}
        settings = {name: value for name, value in known.items() if value is not None}
        return parse_config(cls, settings, where="adapt")

    def schedule(self, *, own_peak: float) -> LearningRateConfig:
        """Return the learning-rate schedule; `own_peak` is the default peak."""
        warmup, decay = self.warmup_steps, self.decay_steps
        return LearningRateConfig(
            peak=self.learning_rate or own_peak,
            warmup_steps=round(WARMUP_SHARE * self.steps) if warmup is None else warmup,
            decay_steps=round(DECAY_SHARE * self.steps) if decay is None else decay,
        )

    @property
    def heldout_objectives(self) -> tuple[Literal["clm", "mlm"], ...]:
        """Objectives of held-out losses: MLM alone if the model is trained by it."""
        # An encoder's CLM loss says nothing about its quality, and costs as much again.
        return ("mlm",) if self.objective == "mlm" else HELDOUT_OBJECTIVES

    @property
    def phase(self) -> dict[str, Any]:
        """The only phase of the training."""
        return {
            "objective": self.objective,
            "steps": self.steps,
            "mlm_probability": self.mlm_probability,
        }


def adapt_model(
    model: Path | str,
    out: Path,
    settings: AdaptConfig,
    *,
    corpus: CorpusConfig | Mapping[str, Any] | Path | str,
    compute: ComputeConfig,
    format: Format,
    revision: str | None,
    checkpoint_every: int,
    store: Path,
    fresh: bool,
    console: Console,
) -> Path:
    """Train a model or continue the run of a state, and export it; see `adapt`."""
    check_format(format)
    find_made(out)
    corpus, say = corpus_settings(corpus), say_on(console)
    look_in(store)
    tune_allocator()
    with progress_bar(console, "reading the model"):
        local = fetch_model(model, revision=revision)
    recipe, paths, earlier = _planned(
        local, settings, corpus, store, compute=compute, name=str(model), console=console
    )
    fingerprint = paths.open().fingerprint
    state = Lineage(recipe, fingerprint).identities[-1]
    if other := OtherCode.of(store, [state]):
        if fresh:
            refuse_existing(out)
        else:
            say(other.note())
    if find_made(out, export_inputs(state, format=format)):
        say(f"{out}: already made from the same model, text and settings; nothing to do")
        return out
    if earlier:
        earlier.require(recipe, fingerprint)
        earlier.bring_into(store)
        say(f"continuing the run of {local.identity[:12]} after its {earlier.steps} steps")
    say(_plan(recipe, compute))
    trained = train_recipe(
        recipe,
        paths,
        store,
        checkpoint_every=checkpoint_every,
        heldout_every=0,
        # A continued run keeps recording both, like its earlier states.
        heldout_objectives=HELDOUT_OBJECTIVES if earlier else settings.heldout_objectives,
        compute=compute,
        console=console,
        fresh=fresh,
    )
    say(f"state: {trained}")
    with progress_bar(console, "exporting"):
        return write_export(trained, out, format=format, say=say)


def _planned(
    local: LocalModel,
    settings: AdaptConfig,
    corpus: CorpusConfig,
    store: Path,
    *,
    compute: ComputeConfig,
    name: str,
    console: Console,
) -> tuple[Recipe, DataPaths, Continuation | None]:
    """Check the model and build the corpus; return the recipe, its data, and a run to continue."""
    recipe = _first_run(local, settings, name=name)
    recipe.check()
    if not is_state(local):  # whose own run may have more rows
        compute.check_rows(recipe.placed_phases)
    with progress_bar(console, "checking the model"):
        check_model(local, recipe, name=name)
    corpus = _corpus_of(corpus, local, settings).pinned()
    paths = prepare_corpus(corpus, locate_corpus(corpus, store), store, console=console)
    if earlier := find_continuation(local, paths.open().fingerprint):
        recipe = _continued(earlier, settings)
    elif is_state(local):
        say_on(console)(_NOT_CONTINUED)
    recipe = recipe.skipping(settings.skip_steps)
    return recipe, paths.extended([recipe]), earlier


def adaptation_text(
    model: Path | str,
    *,
    corpus: CorpusConfig | Mapping[str, Any] | Path | str,
    revision: str | None = None,
    compute: ComputeConfig | Mapping[str, Any] | None = None,
    **given: Any,
) -> str:
    """Return the recipe that `adapt` would train with these arguments, as a recipe file."""
    settings = AdaptConfig.of(**given)
    corpus, how = corpus_settings(corpus), parse_compute(compute)
    local = fetch_model(model, revision=revision)
    recipe = _first_run(local, settings, name=str(model))
    recipe.check()
    recipe = recipe.skipping(settings.skip_steps)
    text = recipe_text(recipe, corpus=_corpus_of(corpus, local, settings), compute=how)
    return text + (_OWN_RUN if is_state(local) else "")


def _corpus_of(corpus: CorpusConfig, model: LocalModel, settings: AdaptConfig) -> CorpusConfig:
    """Return the corpus to build, with the model's tokenizer and only as many tokens as needed."""
    if corpus.folder is not None:
        return corpus
    if corpus.vocab_size:
        raise ConfigError("corpus: 'vocab_size' is for a new tokenizer; the model has one")
    shape = _shape(model, settings)
    tokens = settings.steps * shape["max_seqlen"] * shape["rows_per_step"]
    most = corpus.max_tokens or max(tokens, LEAST_TOKENS)
    return corpus.model_copy(update={"tokenizer": str(model.folder), "max_tokens": most})


def _shape(model: LocalModel, settings: AdaptConfig) -> dict[str, int]:
    longest = min(MAX_SEQLEN, model_limits(model.folder).longest_input)
    return {
        "max_seqlen": settings.max_seqlen or longest,
        "rows_per_step": settings.rows_per_step or ROWS_PER_STEP,
    }


def _first_run(model: LocalModel, settings: AdaptConfig, *, name: str) -> Recipe:
    """Return the recipe that trains a pretrained model, named by its folder or hub id."""
    seed = settings.seed or 0
    # Rounded to two digits.
    own_peak = float(f"{PEAK_TIMES_WIDTH / read_config(model.folder).hidden_size:.1e}")
    raw = {
        "model": {
            "pretrained": str(model.folder) if model.revision is None else name,
            "revision": model.revision,
        },
        "phases": [settings.phase],
        "learning_rate": settings.schedule(own_peak=own_peak).model_dump(),
        "optimizer": settings.optimizer or AdamW(),
        "precision": settings.precision or "bf16",
        "seeds": {"data_seed": seed, "mask_seed": seed},
        **_shape(model, settings),
    }
    return parse_config(Recipe, raw, where="adapt")


def _continued(earlier: Continuation, settings: AdaptConfig) -> Recipe:
    """Return the recipe of a state, extended by one phase."""
    recipe = earlier.recipe
    seeds = recipe.seeds
    own = (
        ("optimizer", recipe.optimizer),
        ("precision", recipe.precision),
        ("seed", seeds.mask_seed),
        ("seed", seeds.data_seed),
    )
    for name, old in own:
        if getattr(settings, name) not in (None, old):
            raise ConfigError(
                f"adapt: {name}: must be {old}, as in the state's run; omit this setting"
            )
    phase = {
        **settings.phase,
        "learning_rate": settings.schedule(own_peak=earlier.schedule.peak).model_dump(),
        "optimizer_state": settings.optimizer_state,
        "max_seqlen": settings.max_seqlen,
        "rows_per_step": settings.rows_per_step,
    }
    raw = recipe.model_dump(mode="json")
    return parse_config(Recipe, {**raw, "phases": [*raw["phases"], phase]}, where="adapt")


def _plan(recipe: Recipe, compute: ComputeConfig) -> str:
    """Describe the training."""
    last = recipe.placed_phases[-1]
    rows = f"{last.batches.rows_per_step} x {last.batches.max_seqlen} tokens"
    most = compute.max_tokens_per_pass
    return (
        f"training {last.phase.steps:,} steps of {rows} by {last.phase.short_name}, peak rate "
        f"{rate(last.schedule.peak)}, {recipe.precision}" + (f", {most:,} at once" if most else "")
    )
