"""Adapt a decoder or encoder: continue training it as a text encoder, and export it.

Continuing a pretrained decoder with masked language modelling is the cheapest known way to a strong
encoder (arXiv 2507.00994, section 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from rich.console import Console

from biphasic.config import Config, parse_config
from biphasic.data.building.config import CorpusConfig
from biphasic.errors import ConfigError
from biphasic.export.output import find_made, refuse_existing
from biphasic.export.write import Format, check_format, export_inputs, export_model
from biphasic.files import expanded
from biphasic.model.checks.limits import model_limits
from biphasic.model.compute.device import computing_on, parse_device
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.model.loading.reading import read_config
from biphasic.objectives.lr import LearningRateConfig
from biphasic.plugins import look_in
from biphasic.progress import progress_bar, progress_console, say_on
from biphasic.study import DEFAULT_ROOT, STORE
from biphasic.study.api import parse_compute, train_recipe
from biphasic.study.inputs.corpus import (
    DataPaths,
    corpus_settings,
    locate_corpus,
    prepare_corpus,
)
from biphasic.study.inputs.models import (
    Continuation,
    check_model,
    check_state,
    find_continuation,
    is_state,
)
from biphasic.study.plan.finished import OtherCode
from biphasic.study.spec.resolved import recipe_text
from biphasic.training.compute import ComputeConfig
from biphasic.training.intervals import CHECKPOINT_EVERY
from biphasic.training.lineage import Lineage
from biphasic.training.memory import tune_allocator
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.optimizers.registry import AnyOptimizer
from biphasic.training.recipe import Precision, Recipe, SkippedSteps
from biphasic.training.records.log import viewed_in_wandb
from biphasic.training.state import read_state_record

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
    """Settings of an adaptation. Values of None are derived from the model."""

    steps: PositiveInt = 2000
    """Optimizer steps."""
    objective: Literal["mlm", "mntp"] = "mlm"
    """Masked language modelling, or masked next-token prediction."""
    mlm_probability: Annotated[float, Field(gt=0, le=1)] = 0.4
    """Probability of masking a token."""
    learning_rate: PositiveFloat | None = None
    """Peak learning rate. Default: the state's, else 0.4 / hidden size."""
    warmup_steps: NonNegativeInt | None = None
    """Linear warm-up steps. Default: 1/20 of the steps."""
    decay_steps: NonNegativeInt | None = None
    """Final linear decay steps. Default: 1/10 of the steps."""
    optimizer: AnyOptimizer | None = None
    """Optimizer. Default: the state's, else AdamW."""
    optimizer_state: Literal["keep", "reset"] = "keep"
    """Keep or reset the optimizer moments of a state; other models have none."""
    max_seqlen: PositiveInt | None = None
    """Row length in tokens. Default: the state's, else 512 or the model's limit."""
    rows_per_step: PositiveInt | None = None
    """Rows per batch. Default: the state's, else 32."""
    precision: Precision | None = None
    """Precision of the computation; weights are fp32. Default: the state's, else bf16."""
    seed: NonNegativeInt | None = None
    """Seed of masks and data order. Default: the state's, else 0."""
    skip_steps: SkippedSteps = ()
    """Steps to skip, as in a recipe. They count from the start of a state's run."""

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
        return ("mlm",) if self.objective == "mlm" else ("clm", "mlm")

    @property
    def phase(self) -> dict[str, Any]:
        """The only phase of the training."""
        return {
            "objective": self.objective,
            "steps": self.steps,
            "mlm_probability": self.mlm_probability,
        }


def adapt(
    model: Path | str,
    out: Path | str,
    *,
    corpus: CorpusConfig | Mapping[str, Any] | Path | str,
    settings: AdaptConfig | Mapping[str, Any] | None = None,
    format: Format = "sentence-transformers",
    revision: str | None = None,
    root: Path | str = DEFAULT_ROOT,
    checkpoint_every: int = CHECKPOINT_EVERY.default,
    compute: ComputeConfig | Mapping[str, Any] | None = None,
    device: str | None = None,
    fresh: bool = False,
    wandb: str | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> Path:
    """Continue training a model as an encoder, and export it.

    A state of an earlier run on the same corpus continues that run: it reads new rows, and keeps
    its optimizer state by default. An interrupted call resumes when it is repeated.

    Args:
        model: Folder of a decoder, an encoder or a state; or an id on the hub.
        out: Folder to write.
        corpus: Text: a source such as `hf:HuggingFaceFW/fineweb-edu` or a folder of files; a folder
            that `biphasic corpus build` made for the model's tokenizer; a corpus file (YAML); or
            settings of a corpus.
        settings: How to train.
        format: As in `export_model`.
        revision: Of a model on the hub.
        root: Folder of the store.
        checkpoint_every: Updates between checkpoints; 0 for none.
        compute: How steps are computed; as in `pretrain`.
        device: As in `pretrain`.
        fresh: As in `pretrain`; `out` must not exist then.
        wandb: As in `pretrain`.
        quiet: Show no progress.
        console: Where progress is shown; standard error when None.

    Returns:
        `out`. An existing one from the same model, text and settings is kept.

    Raises:
        ConfigError: A setting is invalid, or `out` holds something else.
        DataError: Model or text are missing or damaged.
        ModelError: The model cannot be an encoder, does not belong to its tokenizer, or does not
            fit into memory.
        TrainingError: The loss is not finite.

    Example:
        >>> from biphasic import adapt
        >>> adapt("decoder", "adapted", corpus="texts.jsonl", settings={"steps": 2}).name
        'adapted'
    """
    out = expanded(out)
    check_format(format)
    find_made(out)
    settings = parse_config(AdaptConfig, settings or {}, where="adapt")
    compute, chosen = parse_compute(compute), parse_device(device)
    corpus = corpus_settings(corpus)
    console = console or progress_console(quiet=quiet)
    say, store = say_on(console), Path(root).resolve() / STORE
    look_in(store)
    tune_allocator()
    with computing_on(chosen), viewed_in_wandb(wandb):
        with progress_bar(console, "reading the model"):
            local = fetch_model(model, revision=revision)
        check_state(local, store, say=say)
        recipe, paths, earlier = _planned(
            local, settings, corpus, store, name=str(model), console=console
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
            heldout_objectives=("clm", "mlm") if earlier else settings.heldout_objectives,
            compute=compute,
            console=console,
            fresh=fresh,
        )
    _report(trained, say)
    with progress_bar(console, "exporting"):
        return export_model(trained, out, format=format, say=say)


def _planned(
    local: LocalModel,
    settings: AdaptConfig,
    corpus: CorpusConfig,
    store: Path,
    *,
    name: str,
    console: Console,
) -> tuple[Recipe, DataPaths, Continuation | None]:
    """Check the model and build the corpus; return the recipe, its data, and a run to continue."""
    recipe = _first_run(local, settings, name=name)
    recipe.check()
    with progress_bar(console, "checking the model"):
        check_model(local, recipe, name=name)
    corpus = _corpus_of(corpus, local, settings)
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
    settings: AdaptConfig | Mapping[str, Any] | None = None,
    revision: str | None = None,
    compute: ComputeConfig | Mapping[str, Any] | None = None,
) -> str:
    """Return the recipe that `adapt` would train, as a recipe file, without training."""
    settings = parse_config(AdaptConfig, settings or {}, where="adapt")
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
        f"{last.schedule.peak:g}, {recipe.precision}" + (f", {most:,} at once" if most else "")
    )


def _report(state: Path, say: Callable[[str], None]) -> None:
    """Report the tokens and held-out losses of a trained state."""
    record = read_state_record(state, identity=state.name)
    tokens = sum(phase.tokens for phase in record.ledger)
    losses = ", ".join(f"{name.upper()} {loss:.3f}" for name, loss in record.heldout.items())
    say(f"trained on {tokens:,} tokens; held-out loss in nats per token: {losses}")
    say(f"state: {state}")
