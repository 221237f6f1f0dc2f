"""Adapt a decoder or encoder from Python: continue training it as a text encoder, and export it.

Continuing a pretrained decoder with masked language modelling is the cheapest known way to a strong
encoder (arXiv 2507.00994, section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from biphasic.api.training import Training
from biphasic.api.verb import Function, Revision, option
from biphasic.errors import ConfigError
from biphasic.export import As, ExportSettings, Format
from biphasic.files import expanded
from biphasic.training import HELDOUT_OBJECTIVES

if TYPE_CHECKING:
    from biphasic.data.building.config import CorpusConfig
    from biphasic.model.loading.hub import LocalModel
    from biphasic.model.shape import Lora
    from biphasic.study.inputs.corpus import DataPaths
    from biphasic.study.inputs.models import Continuation
    from biphasic.training.compute import ComputeConfig
    from biphasic.training.optimizers.registry import AnyOptimizer
    from biphasic.training.recipe import Precision, Recipe

# Default peak learning rate times hidden size: 4e-4 at 1,024. See docs/adapt.md.
PEAK_TIMES_WIDTH = 0.4
WARMUP_SHARE = 0.05  # share of all steps: new optimizer moments must not damage pretrained weights
DECAY_SHARE = 0.1  # share of all steps, at the end
MAX_SEQLEN = 512  # default row length in tokens, if the model allows it
ROWS_PER_STEP = 32  # default rows per batch
MLM_PROBABILITY = 0.4  # default chance to mask a token

_NOT_CONTINUED = (
    "the state's run cannot be continued: the text differs, or no recipe ends with the state (it "
    "is within a decay, or of another version); it is used as a pretrained model, with new "
    "optimizer moments; peak rate, optimizer, rows, precision and seed are adapt's own defaults, "
    "unless set"
)
_OWN_RUN = """\
# The model is a state. On the text of its own run, training continues that run: it reads new rows,
# and the run's settings replace the defaults above.
"""
LEAST_TOKENS = 1 << 20  # minimum tokens of text, even for short training: some of it is held out


def _lora(texts: Sequence[str] | None) -> Mapping[str, Any] | None:
    """Return the mapping of options such as `rank=16`."""
    from biphasic.config import parse_overrides

    return parse_overrides(texts, option="--lora") if texts else None


class Adapt(Training, Revision):
    """Continue training a decoder or encoder, and export it.

    Returns:
        `out`. A state of an earlier run on the same corpus continues that run: it reads new rows,
        and keeps its optimizer state by default. An interrupted call resumes when it is repeated.

    Raises:
        ConfigError: A setting is invalid, or `out` holds something else.
        DataError: Model or text are missing or damaged.
        ModelError: The model cannot be an encoder, does not belong to its tokenizer, or does not
            fit into memory.
        TrainingError: The loss is not finite.

    Example:
        >>> from biphasic import adapt
        >>> adapt("decoder", "adapted", corpus="texts.jsonl", steps=2).name
        'adapted'
    """

    model: Path | str = option(type=str)
    """Folder of a decoder, an encoder or a state, or a hub id."""
    out: Path | str = option(flag="--out")
    """Folder to write. In Python, an existing one from the same model, text and settings is
    kept."""
    _: KW_ONLY
    corpus: CorpusConfig | Mapping[str, Any] | Path | str = option(type=str)
    """Text file or folder, hf:DATASET, builtin:pydocs, a folder made by `biphasic corpus build`, or
    a corpus file (YAML). In Python also settings of a corpus."""
    steps: int = option(default=2000, least=1)
    """Optimizer steps."""
    mlm_probability: float | None = None
    """Probability of masking a token. Default: 0.4."""
    objective: Literal["mlm", "mntp"] = option(default="mlm", choices=("mlm", "mntp"), type=str)
    """mlm, or mntp (masked next-token prediction)."""
    learning_rate: float | None = None
    """Peak learning rate. Default: that of a continued run, else 0.4 / hidden size."""
    warmup_steps: int | None = option(default=None, least=0)
    """Linear warm-up steps. Default: 1/20 of the steps."""
    decay_steps: int | None = option(default=None, least=0)
    """Final linear decay steps. Default: 1/10 of the steps."""
    lora: Lora | Mapping[str, Any] | None = option(
        default=None, metavar="KEY=VALUE", type=list[str], convert=_lora
    )
    """Train low-rank additions in place of the weights: rank=16, alpha=32, and
    targets=[q_proj,v_proj] for some layers only."""
    optimizer: AnyOptimizer | Mapping[str, Any] | str | None = option(default=None, type=str)
    """adamw or muon. Default: that of a continued run, else adamw. In Python also its settings."""
    reset_optimizer: bool = False
    """Reset the optimizer moments of a state."""
    max_seqlen: int | None = option(default=None, least=1)
    """Row length in tokens. Default: that of a continued run, else 512 or the model's limit."""
    rows_per_step: int | None = option(default=None, least=1)
    """Rows per batch. Default: that of a continued run, else 32."""
    precision: Precision | None = option(default=None, choices=("bf16", "fp32"), type=str)
    """bf16 or fp32. Default: that of a continued run, else bf16."""
    seed: int | None = option(default=None, least=0)
    """Seed of masks and data order. Default: that of a continued run, else 0."""
    format: Format = option(default="sentence-transformers", choices=get_args(Format), type=str)
    """hf, sentence-transformers or onnx; see `biphasic export`."""
    as_: As = option(default="auto", flag="--as", choices=get_args(As), type=str)
    """auto, eurobert, llama or own; see `biphasic export`."""
    adapter: bool = False
    """Write the additions of `lora` as an adapter, beside the model without them."""

    def __call__(self) -> Path:
        from biphasic.export.output import find_made, refuse_existing
        from biphasic.plugin_code import look_in
        from biphasic.progress import progress_bar
        from biphasic.study.one_arm import parse_compute, train_recipe
        from biphasic.study.plan.finished import OtherCode
        from biphasic.training.lineage import Lineage
        from biphasic.training.memory import tune_allocator
        from biphasic.training.metrics_log import viewed_in_wandb

        compute = parse_compute(self.compute, threads=self.threads)
        store, out = self.store, expanded(self.out)
        form = ExportSettings(self.format, self.as_, adapter=self.adapter)
        form.check()
        if self.adapter and self.lora is None:
            raise ConfigError("adapter: there is none without lora; add lora or omit adapter")
        find_made(out)
        look_in(store)
        with self.computing(), viewed_in_wandb(self.wandb):
            corpus = self._checked()  # before torch is imported, which takes seconds
            from biphasic.export.write import write_export

            tune_allocator()
            recipe, paths, earlier = self._planned(corpus, compute)
            fingerprint = paths.open().fingerprint
            state = Lineage(recipe, fingerprint).identities[-1]
            if other := OtherCode.of(store, [state]):
                if self.fresh:
                    refuse_existing(out)
                else:
                    self.say(other.note())
            if find_made(out, form.inputs(state)):
                self.say(
                    f"{out}: already made from the same model, text and settings; nothing to do"
                )
                return out
            if earlier:
                earlier.require(recipe, fingerprint)
                earlier.bring_into(store)
                name, steps = earlier.identity[:12], earlier.steps
                self.say(f"continuing the run of {name} after its {steps} steps")
            self.say(_summary(recipe, compute))
            # A continued run keeps recording both losses, like its earlier states. Else, an
            # encoder's CLM loss says nothing about its quality, and costs as much again.
            is_mlm_alone = self.objective == "mlm" and not earlier
            trained = train_recipe(
                recipe,
                paths,
                store,
                checkpoint_every=self.checkpoint_every,
                heldout_every=0,
                heldout_objectives=("mlm",) if is_mlm_alone else HELDOUT_OBJECTIVES,
                compute=compute,
                console=self.console,
                fresh=self.fresh,
            )
            self.say(f"state: {trained}")
            with progress_bar(self.console, "exporting"):
                return write_export(trained, out, form, say=self.say)

    def print_config(self) -> str:
        """Return the recipe that would be trained, as a recipe file."""
        from biphasic.model.loading.hub import fetch_model
        from biphasic.study.inputs.models import is_state
        from biphasic.study.one_arm import parse_compute
        from biphasic.study.settings.load import recipe_text

        compute, settings = parse_compute(self.compute), self._checked()
        local = fetch_model(self.model, revision=self.revision)
        recipe = self._first_run(local)
        recipe.check()
        recipe = recipe.skipping(self.skip_steps)
        text = recipe_text(recipe, corpus=self._corpus_of(settings, local), compute=compute)
        return text + (_OWN_RUN if is_state(local) else "")

    def _planned(
        self, settings: CorpusConfig, compute: ComputeConfig
    ) -> tuple[Recipe, DataPaths, Continuation | None]:
        """Check the model and build the corpus; return the recipe, its data, and an earlier run."""
        from biphasic.export.hf import check_as
        from biphasic.model.loading.hub import fetch_model
        from biphasic.model.loading.reading import read_config
        from biphasic.progress import progress_bar
        from biphasic.study.inputs.corpus import locate_corpus, prepare_corpus
        from biphasic.study.inputs.models import check_model, find_continuation, is_state

        with progress_bar(self.console, "reading the model"):
            local = fetch_model(self.model, revision=self.revision)
        check_as(self.as_, read_config(local.folder), where=str(self.model))
        recipe = self._first_run(local)
        recipe.check()
        if not is_state(local):  # whose own run may have more rows and steps
            compute.check_rows(recipe.placed_phases)
            recipe.skipping(self.skip_steps).check()
        with progress_bar(self.console, "checking the model"):
            check_model(local, recipe, compute, name=str(self.model))
        corpus = self._corpus_of(settings, local).at_commits()
        paths = prepare_corpus(
            corpus, locate_corpus(corpus, self.store), self.store, console=self.console
        )
        data = paths.open()
        if earlier := find_continuation(local, data.fingerprint):
            recipe = self._continued(earlier)
        elif is_state(local):
            self.say(_NOT_CONTINUED)
        if settings.folder is None and settings.max_tokens is None:
            self._note_end(paths, recipe, tokens=data.corpus.num_tokens)
        recipe = recipe.skipping(self.skip_steps)
        paths = paths.with_phases([recipe], self.store, console=self.console)
        return recipe, paths.extended([recipe]), earlier

    def _note_end(self, paths: DataPaths, recipe: Recipe, *, tokens: int) -> None:
        """Say if a long document ends the text before training has read enough of it."""
        from biphasic.data.building.build import read_record

        ended = read_record(paths.train.parent).get("ended_by", {})
        rows = recipe.placed_phases[-1].batches
        # Each row has at least a token before and after its text.
        reads = self.steps * rows.rows_per_step * (rows.max_seqlen - 2)
        if ended and tokens < reads:
            name, longest = max(ended.items(), key=lambda item: item[1])
            self.say(
                f"warning: {name}: the text ends after {tokens:,} tokens, as the next document has "
                f"{longest:,}, more than are left to take; training reads up to {reads:,}, so it "
                "repeats text: split long documents, or give a corpus file with max_characters, or "
                "with a larger max_tokens"
            )

    def _checked(self) -> CorpusConfig:
        """Check the settings before the model is fetched, which takes minutes; return the text."""
        from biphasic.study.inputs.corpus import corpus_settings

        corpus = corpus_settings(self.corpus)
        if corpus.vocab_size and corpus.folder is None:
            raise ConfigError("corpus: 'vocab_size' is for a new tokenizer; the model has one")
        own = corpus.tokenizer
        if own and expanded(own).resolve() != expanded(self.model).resolve():
            raise ConfigError(f"corpus: 'tokenizer' is {own}; omit it, as the model has its own")
        self._recipe({"pretrained": str(self.model)}, own_peak=1e-3, shape={}).check()
        return corpus

    def _corpus_of(self, corpus: CorpusConfig, model: LocalModel) -> CorpusConfig:
        """Return the corpus, with the model's tokenizer and only as many tokens as needed."""
        if corpus.folder is not None:
            return corpus
        shape = self._shape(model)
        tokens = self.steps * shape["max_seqlen"] * shape["rows_per_step"]
        most = corpus.max_tokens or max(tokens, LEAST_TOKENS)
        return corpus.model_copy(update={"tokenizer": str(model.folder), "max_tokens": most})

    def _shape(self, model: LocalModel) -> dict[str, int]:
        from biphasic.model.contract import model_limits

        longest = min(MAX_SEQLEN, model_limits(model.folder).longest_input)
        return {
            "max_seqlen": self.max_seqlen or longest,
            "rows_per_step": self.rows_per_step or ROWS_PER_STEP,
        }

    def _phase(self) -> dict[str, Any]:
        from biphasic.config import parse_config
        from biphasic.model.shape import Lora

        lora = self.lora and parse_config(Lora, self.lora, where="lora")
        phase = {"objective": self.objective, "steps": self.steps, "lora": lora}
        masked = MLM_PROBABILITY if self.mlm_probability is None else self.mlm_probability
        return {**phase, "mlm_probability": masked}

    def _schedule(self, own_peak: float) -> dict[str, Any]:
        """Return the schedule of learning rates; `own_peak` is the default peak."""
        warmup, decay = self.warmup_steps, self.decay_steps
        return {
            "peak": own_peak if self.learning_rate is None else self.learning_rate,
            "warmup_steps": round(WARMUP_SHARE * self.steps) if warmup is None else warmup,
            "decay_steps": round(DECAY_SHARE * self.steps) if decay is None else decay,
        }

    def _first_run(self, model: LocalModel) -> Recipe:
        """Return the recipe that trains a pretrained model, named by its folder or hub id."""
        from biphasic.model.loading.reading import body_class, read_config

        config = read_config(model.folder)
        body_class(model.folder, config)  # models that read more than text state no width
        own_peak = float(f"{PEAK_TIMES_WIDTH / config.hidden_size:.1e}")  # two digits
        named = {
            "pretrained": str(model.folder) if model.revision is None else str(self.model),
            "revision": model.revision,
        }
        return self._recipe(named, own_peak=own_peak, shape=self._shape(model))

    def _recipe(self, model: Any, *, own_peak: float, shape: Mapping[str, int]) -> Recipe:
        from biphasic.config import parse_config
        from biphasic.training.optimizers.adamw import AdamW
        from biphasic.training.recipe import Recipe

        seed = self.seed or 0
        raw = {
            "model": model,
            "phases": [self._phase()],
            "learning_rate": self._schedule(own_peak),
            "optimizer": _optimizer(self.optimizer) or AdamW(),
            "precision": self.precision or "bf16",
            "seeds": {"data_seed": seed, "mask_seed": seed},
            **shape,
        }
        return parse_config(Recipe, raw, where="adapt")

    def _continued(self, earlier: Continuation) -> Recipe:
        """Return the recipe of a state, extended by one phase."""
        from biphasic.config import parse_config
        from biphasic.training.recipe import Recipe

        recipe = earlier.recipe
        raw = recipe.model_dump(mode="json")
        own = (
            ("precision", self.precision, recipe.precision),
            ("seed", self.seed, recipe.seeds.mask_seed),
            ("seed", self.seed, recipe.seeds.data_seed),
        )
        optimizer = _optimizer(self.optimizer)
        if optimizer is not None:
            changed = parse_config(Recipe, {**raw, "optimizer": optimizer}, where="adapt")
            own = (*own, ("optimizer", changed.optimizer, recipe.optimizer))
        for name, value, old in own:
            if value not in (None, old):
                raise ConfigError(
                    f"adapt: {name}: must be {old}, as in the state's run; omit this setting"
                )
        phase = {
            **self._phase(),
            "learning_rate": self._schedule(earlier.schedule.peak),
            "optimizer_state": "reset" if self.reset_optimizer else "keep",
            "max_seqlen": self.max_seqlen,
            "rows_per_step": self.rows_per_step,
        }
        return parse_config(Recipe, {**raw, "phases": [*raw["phases"], phase]}, where="adapt")


def _optimizer(optimizer: AnyOptimizer | Mapping[str, Any] | str | None) -> Any:
    return {"name": optimizer} if isinstance(optimizer, str) else optimizer


def _summary(recipe: Recipe, compute: ComputeConfig) -> str:
    """Describe the training."""
    from biphasic.amounts import rate

    last = recipe.placed_phases[-1]
    rows = f"{last.batches.rows_per_step} x {last.batches.max_seqlen} tokens"
    most = compute.max_tokens_per_pass
    return (
        f"training {last.phase.steps:,} steps of {rows} by {last.phase.short_name}, peak rate "
        f"{rate(last.schedule.peak)}, {recipe.precision}" + (f", {most:,} at once" if most else "")
    )


adapt = Function(Adapt)
