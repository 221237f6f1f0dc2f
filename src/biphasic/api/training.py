"""Training of a model from Python: `pretrain`, `merge_models` and `estimate`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.api.verb import Computing, Function, Logged, Quiet, Root, Verb, option
from biphasic.errors import ConfigError
from biphasic.files import expanded
from biphasic.training import CHECKPOINT_EVERY, HELDOUT_EVERY

if TYPE_CHECKING:
    from biphasic.data.building.config import CorpusConfig
    from biphasic.export.hf import Method
    from biphasic.study.sizing.estimate import ResourceEstimate
    from biphasic.training.compute import ComputeConfig
    from biphasic.training.recipe import Recipe


def _settings(texts: Sequence[str] | None) -> Mapping[str, Any]:
    """Return the mapping of options such as `max_tokens_per_pass=4096`."""
    from biphasic.config import parse_overrides

    return parse_overrides(texts or (), option="--compute")


def _shares(texts: Sequence[str] | None) -> Mapping[str, float]:
    """Return the mapping of options such as `0-5=0.3`."""
    shares: dict[str, float] = {}
    for text in texts or ():
        name, _, share = text.partition("=")
        if name in shares:
            raise ConfigError(f"--group {text}: '{name}' is given more than once")
        try:
            shares[name] = float(share)
        except ValueError:
            raise ConfigError(f"--group {text}: give GROUP=WEIGHT, as 0-5=0.3") from None
    return shares


def _seconds(text: str) -> int:
    """Return the seconds of a time `HH:MM:SS`."""
    from biphasic.config import DURATION, duration_seconds

    if not re.match(DURATION, text):
        raise ConfigError(f"--max-time {text}: give a time as HH:MM:SS")
    return duration_seconds(text)


class Training(Root, Logged, Computing, Quiet):
    """How a model is trained."""

    _: KW_ONLY
    compute: ComputeConfig | Mapping[str, Any] | None = option(
        default=None, metavar="KEY=VALUE", type=list[str], convert=_settings
    )
    """Compute settings: processes=N to split the rows over N processes, shard=full to split the
    weights over them, max_tokens_per_pass=N to save memory, activation_checkpointing=true,
    compile=true. In Python a mapping, such as `{"max_tokens_per_pass": 16384}`; results change by
    rounding only."""
    checkpoint_every: int = option(default=CHECKPOINT_EVERY, least=0)
    """Updates between checkpoints; 0 for none."""
    skip_steps: Sequence[int] = option(default=(), flag="--skip-step", metavar="N", least=0)
    """Skip the update of step N, counted from 0, whose loss is not finite. Its rows are read, but
    change no weight."""


class Pretrain(Training):
    """Train one recipe on a corpus.

    Returns:
        The folder of the final state, which transformers can load. Training resumes from the latest
        state of the recipe in the store; a finished recipe is not trained again.

    Raises:
        ConfigError: The recipe is invalid, or the device does not exist.
        CheckpointError: The corpus, a checkpoint, or a state is damaged.
        DataError: The corpus or model does not exist.
        TrainingError: Loss or gradient is not finite.

    Example:
        >>> from biphasic import pretrain
        >>> recipe = {
        ...     "model": "pico",
        ...     "max_seqlen": 64,
        ...     "learning_rate": {"peak": 2e-3, "warmup_steps": 1},
        ...     "phases": [{"objective": "clm", "steps": 2}, {"objective": "mlm", "steps": 2}],
        ... }
        >>> state = pretrain(recipe, corpus={"sources": ["texts.jsonl"], "vocab_size": 320})
        >>> (state / "model.safetensors").is_file()
        True
    """

    recipe: Recipe | Mapping[str, Any] | Path | str = option(metavar="file", type=Path)
    """Recipe file (YAML). In Python also a recipe: model, phases, schedule, seeds."""
    _: KW_ONLY
    corpus: CorpusConfig | Mapping[str, Any] | Path | str | None = option(default=None, type=str)
    """Text file or folder, hf:DATASET, a folder made by `biphasic corpus build`, or a corpus file
    (YAML). Default: the built-in documentation, or
    the texts of pairs if no phase reads anything else. In Python also settings of a corpus."""
    overrides: Sequence[str] = option(default=(), flag="--set", metavar="KEY=VALUE")
    """Override a setting, e.g. model=micro."""
    heldout_every: int = option(default=HELDOUT_EVERY, least=0)
    """Updates between held-out evaluations; 0 for the last only."""
    minimal_pairs: Path | str | None = None
    """File of minimal pairs such as BLiMP's, or a task file of kind mp: record the accuracy on it
    with each held-out loss."""
    max_seconds: float | None = option(
        default=None, flag="--max-time", metavar="HH:MM:SS", parse=_seconds, least=0
    )
    """Save the progress and exit with code 130 after this time. In Python, in seconds;
    `StoppedError` is raised."""

    def __call__(self) -> Path:
        from biphasic.study.inputs.corpus import (
            corpus_of,
            corpus_settings,
            locate_corpus,
            prepare_corpus,
        )
        from biphasic.study.inputs.models import check_fit
        from biphasic.study.one_arm import pairs_task, parse_compute, train_recipe
        from biphasic.study.settings.load import read_recipe
        from biphasic.training.memory import tune_allocator
        from biphasic.training.metrics_log import viewed_in_wandb

        deadline = math.inf if self.max_seconds is None else time.monotonic() + self.max_seconds
        recipe = read_recipe(self.recipe, self.overrides).skipping(self.skip_steps)
        recipe.check()
        recipe.check_beginning()
        if not recipe.phases:
            raise ConfigError(
                "phases: none, so there is nothing to train; give at least one, such as "
                "{objective: mlm, steps: 1000}"
            )
        compute = parse_compute(self.compute, threads=self.threads)
        corpus = corpus_of(corpus_settings(self.corpus), [recipe])
        recipe = recipe.on(corpus)
        compute.check_rows(recipe.placed_phases)
        tune_allocator()
        with self.computing(), viewed_in_wandb(self.wandb):
            console, store = self.console, self.store
            # Before the corpus is built, which may take hours.
            check_fit({"": recipe})
            minimal_pairs = pairs_task(self.minimal_pairs, compute, store, say=self.say)
            corpus = corpus.at_commits()
            paths = prepare_corpus(
                corpus, locate_corpus(corpus, store), store, console=console, recipes=[recipe]
            ).extended([recipe])
            return train_recipe(
                recipe,
                paths,
                store,
                checkpoint_every=self.checkpoint_every,
                heldout_every=self.heldout_every,
                minimal_pairs=minimal_pairs,
                compute=compute,
                console=console,
                deadline=deadline,
                fresh=self.fresh,
            )

    def print_config(self) -> str:
        """Return the recipe with its corpus and compute settings, as YAML."""
        from biphasic.study.inputs.corpus import corpus_of, corpus_settings
        from biphasic.study.one_arm import parse_compute
        from biphasic.study.settings.load import read_recipe, recipe_text

        compute = parse_compute(self.compute)
        recipe = read_recipe(self.recipe, self.overrides).skipping(self.skip_steps)
        corpus = corpus_of(corpus_settings(self.corpus), [recipe])
        return recipe_text(recipe.on(corpus), corpus=corpus, compute=compute)


class MergeModels(Verb):
    """Merge the weights of two models of one architecture.

    Returns:
        `out`. Each tensor is interpolated in fp32. `merge.json` has the identities of both models,
        and that of the merge, a hash of these, the weights and the method. The same models and
        settings give the same bytes, so the folder has one identity wherever it is named.

    Raises:
        ConfigError: A setting is invalid, a group has no weights, or `out` exists.
        ModelError: The models have different tokenizers or architectures.

    Example:
        >>> from biphasic import merge_models
        >>> merge_models("decoder", "decoder", "merged", weight=0.3).name
        'merged'
    """

    base: Path | str = option(type=str)
    """Folder of a state or of a transformers model, or a hub id."""
    adapted: Path | str = option(type=str)
    """The model that was adapted from it; its tokenizer and settings are kept. In Python: and the
    rows of embeddings that `base` lacks."""
    out: Path | str = option(flag="--out")
    """Folder to write; it can be used like any model."""
    _: KW_ONLY
    weight: float = option(default=0.5, least=0, most=1)
    """Share of ADAPTED, from 0 to 1."""
    method: Method = option(default="linear", choices=("linear", "spherical"), type=str)
    """linear, or spherical (along the arc between two tensors)."""
    groups: Mapping[str, float] | None = option(
        default=None, flag="--group", metavar="GROUP=WEIGHT", type=list[str], convert=_shares
    )
    """Weight of a part: a layer (3), layers (0-5), embeddings or rest. In Python, weights by part;
    layers count from 0, `rest` is the last norm and the head, and a tied head is among the
    embeddings."""

    def __call__(self) -> Path:
        from biphasic.export.hf import write_merge

        settings = {"weight": self.weight, "method": self.method, "groups": self.groups or {}}
        return write_merge(self.base, self.adapted, expanded(self.out), **settings)


class Estimate(Verb):
    """Estimate memory and time of a recipe, without training it.

    Returns:
        The estimate. No corpus is read: every row counts as full and as one document. Parameters
        that `freeze` names count like trained ones. Memory on a GPU is untested.

    Raises:
        ConfigError: The recipe or a number is invalid, or the recipe begins with a pretrained
            model.

    Example:
        >>> from biphasic import estimate
        >>> recipe = {
        ...     "model": "610m",
        ...     "max_seqlen": 2048,
        ...     "rows_per_step": 1152,
        ...     "learning_rate": {"peak": 5e-4},
        ...     "phases": [{"objective": "mlm", "steps": 42_000}],
        ... }
        >>> estimate(recipe, vocab_size=128_256, devices=8, device="h200").parameters.total
        755625600
    """

    recipe: Recipe | Mapping[str, Any] | Path | str = option(metavar="file", type=Path)
    """Recipe file (YAML). In Python also a recipe, whose model is a preset or dimensions."""
    _: KW_ONLY
    devices: int = option(default=1, least=1)
    """Devices that train one model. In Python: each reads a part of the rows of a step."""
    device: str | None = None
    """h100, h200, a100-80gb, a100-40gb, mi250x (one of its two dies) or cpu. Default: h100, or a
    GPU described by --flops."""
    vocab_size: int | None = option(default=None, least=1)
    """Vocabulary size. Default: 8192, as for a corpus."""
    mfu: float | None = None
    """Share of the peak that model FLOPs reach. Default: 0.4, an assumption; for mi250x 0.11, by
    the reference study's hours."""
    flops: float | None = None
    """Peak FLOP/s of a device, e.g. 90e9 for a CPU."""
    memory: float | None = None
    """Memory of a device in bytes, e.g. 24e9. Default: that of --device."""
    overrides: Sequence[str] = option(default=(), flag="--set", metavar="KEY=VALUE")
    """Override a setting, e.g. model=610m."""

    def __call__(self) -> ResourceEstimate:
        from biphasic.data.building import DEFAULT_VOCAB_SIZE
        from biphasic.study.settings.load import read_recipe
        from biphasic.study.sizing.estimate import choose_device, estimate_recipe

        vocab_size = DEFAULT_VOCAB_SIZE if self.vocab_size is None else self.vocab_size
        if self.mfu is not None and not 0 < self.mfu <= 1:
            raise ConfigError(f"mfu: {self.mfu:g}; give a share above 0 and at most 1")
        chosen = choose_device(self.device, flops=self.flops, memory=self.memory)
        recipe = read_recipe(self.recipe, self.overrides)
        return estimate_recipe(
            recipe, chosen, mfu=self.mfu, devices=self.devices, vocab_size=vocab_size
        )


pretrain = Function(Pretrain)
merge_models = Function(MergeModels)
estimate = Function(Estimate)
