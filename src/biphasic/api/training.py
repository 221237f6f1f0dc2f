"""Training of a model from Python: `adapt`, `pretrain`, `merge_models` and `estimate`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.api.arguments import check_arguments
from biphasic.errors import ConfigError
from biphasic.files import expanded
from biphasic.store import DEFAULT_ROOT, store_of
from biphasic.training.intervals import CHECKPOINT_EVERY, HELDOUT_EVERY

if TYPE_CHECKING:
    from biphasic.data.building.config import CorpusConfig
    from biphasic.export.write import Format
    from biphasic.model.merge import Method
    from biphasic.study.sizing.result import ResourceEstimate
    from biphasic.training.compute import ComputeConfig
    from biphasic.training.optimizers.registry import AnyOptimizer
    from biphasic.training.recipe import Precision, Recipe


@check_arguments(max_seqlen=(1, None))
def adapt(
    model: Path | str,
    out: Path | str,
    *,
    corpus: CorpusConfig | Mapping[str, Any] | Path | str,
    steps: int = 2000,
    mlm_probability: float | None = None,
    objective: str = "mlm",
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    decay_steps: int | None = None,
    optimizer: AnyOptimizer | Mapping[str, Any] | str | None = None,
    reset_optimizer: bool = False,
    max_seqlen: int | None = None,
    rows_per_step: int | None = None,
    precision: Precision | None = None,
    seed: int | None = None,
    compute: ComputeConfig | Mapping[str, Any] | None = None,
    format: Format = "sentence-transformers",
    revision: str | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY.default,
    root: Path | str = DEFAULT_ROOT,
    device: str | None = None,
    threads: int | None = None,
    skip_steps: Sequence[int] = (),
    fresh: bool = False,
    wandb: str | None = None,
    quiet: bool = False,
) -> Path:
    """Continue training a decoder or encoder, and export it.

    Args:
        model: Folder of a decoder, an encoder or a state, or a hub id.
        out: Folder to write. In Python, an existing one from the same model, text and settings is
            kept.
        corpus: Text file or folder, hf:DATASET, builtin:pydocs, a folder made by `biphasic corpus
            build`, or a corpus file (YAML). In Python also settings of a corpus.
        steps: Optimizer steps.
        mlm_probability: Probability of masking a token. Default: 0.4.
        objective: mlm, or mntp (masked next-token prediction).
        learning_rate: Peak learning rate. Default: the state's, else 0.4 / hidden size.
        warmup_steps: Linear warm-up steps. Default: 1/20 of the steps.
        decay_steps: Final linear decay steps. Default: 1/10 of the steps.
        optimizer: adamw or muon. Default: the state's, else adamw. In Python also its settings.
        reset_optimizer: Reset the optimizer moments of a state.
        max_seqlen: Row length in tokens. Default: that of a state's run, else 512 or
            the model's limit.
        rows_per_step: Rows per batch. Default: that of a state's run, else 32.
        precision: bf16 or fp32. Default: the state's, else bf16.
        seed: Seed of masks and data order. Default: the state's, else 0.
        compute: As in `pretrain`.
        format: hf, sentence-transformers or onnx; see `biphasic export`.
        revision: Revision of a model on the hub.
        checkpoint_every: As in `pretrain`.
        root: Folder of the store.
        device: As in `predict`.
        threads: As in `predict`; they may change the last bits of weights.
        skip_steps: As in `pretrain`.
        fresh: As in `pretrain`.
        wandb: As in `pretrain`.
        quiet: Show results and errors only.

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
    from biphasic.adaptation import AdaptConfig, adapt_model
    from biphasic.execution.slots import check_cores
    from biphasic.model.compute.device import compute_threads, computing_on, parse_device
    from biphasic.progress import progress_console
    from biphasic.study.training import parse_compute
    from biphasic.training.records.log import viewed_in_wandb

    check_cores(num_threads=threads or 1)
    parsed = parse_compute(compute, threads=threads)
    settings = AdaptConfig.of(
        steps=steps,
        mlm_probability=mlm_probability,
        objective=objective,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        decay_steps=decay_steps,
        optimizer=optimizer,
        reset_optimizer=reset_optimizer,
        max_seqlen=max_seqlen,
        rows_per_step=rows_per_step,
        precision=precision,
        seed=seed,
        skip_steps=skip_steps,
    )
    chosen = parse_device(device)
    with computing_on(chosen), compute_threads(threads), viewed_in_wandb(wandb):
        return adapt_model(
            model,
            expanded(out),
            settings,
            corpus=corpus,
            compute=parsed,
            format=format,
            revision=revision,
            checkpoint_every=checkpoint_every,
            store=store_of(root),
            fresh=fresh,
            console=progress_console(quiet=quiet),
        )


@check_arguments(max_seconds=(0, None))
def pretrain(
    recipe: Recipe | Mapping[str, Any] | Path | str,
    *,
    corpus: CorpusConfig | Mapping[str, Any] | Path | str | None = None,
    root: Path | str = DEFAULT_ROOT,
    overrides: Sequence[str] = (),
    checkpoint_every: int = CHECKPOINT_EVERY.default,
    heldout_every: int = HELDOUT_EVERY.default,
    minimal_pairs: Path | str | None = None,
    compute: ComputeConfig | Mapping[str, Any] | None = None,
    device: str | None = None,
    threads: int | None = None,
    max_seconds: float | None = None,
    skip_steps: Sequence[int] = (),
    fresh: bool = False,
    wandb: str | None = None,
    quiet: bool = False,
) -> Path:
    """Train one recipe on a corpus.

    Args:
        recipe: Recipe file (YAML). In Python also a recipe: model, phases, schedule, seeds.
        corpus: Text file or folder, hf:DATASET, a folder made by `biphasic corpus build`, or a
            corpus file (YAML). Default: the built-in documentation. In Python also settings of a
            corpus.
        root: Folder of studies and their shared store.
        overrides: Override a setting, e.g. model=micro.
        checkpoint_every: Updates between checkpoints; 0 for none.
        heldout_every: Updates between held-out evaluations; 0 for the last only.
        minimal_pairs: File of minimal pairs such as BLiMP's, or a task file of kind mp: record the
            accuracy on it with each held-out loss.
        compute: Compute settings: processes=N to split the rows over N processes, shard=full to
            split the weights over them, max_tokens_per_pass=N to save memory,
            activation_checkpointing=true, compile=true. In Python a mapping, such as
            `{"max_tokens_per_pass": 16384}`; results change by rounding only.
        device: As in `predict`.
        threads: As in `predict`; they may change the last bits of weights.
        max_seconds: Save the progress and exit with code 130 after this time. In Python, in
            seconds; `StoppedError` is raised.
        skip_steps: Skip the update of step N, counted from 0, whose loss is not finite. Its rows
            are read, but change no weight.
        fresh: As in `run_study`.
        wandb: As in `run_study`.
        quiet: Show results and errors only.

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
    from biphasic.execution.slots import check_cores
    from biphasic.model.compute.device import compute_threads, computing_on, parse_device
    from biphasic.progress import progress_console, say_on
    from biphasic.study.inputs.corpus import corpus_settings, locate_corpus, prepare_corpus
    from biphasic.study.spec.arms import read_recipe
    from biphasic.study.training import pairs_task, parse_compute, train_recipe
    from biphasic.training.memory import tune_allocator
    from biphasic.training.records.log import viewed_in_wandb

    deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
    recipe = read_recipe(recipe, overrides).skipping(skip_steps)
    recipe.check()
    if not recipe.phases:
        raise ConfigError(
            "phases: none, so there is nothing to train; give at least one, such as "
            "{objective: mlm, steps: 1000}"
        )
    check_cores(num_threads=threads or 1)
    compute, corpus = parse_compute(compute, threads=threads), corpus_settings(corpus)
    compute.check_rows(recipe.placed_phases)
    tune_allocator()
    console, store = progress_console(quiet=quiet), store_of(root)
    chosen = parse_device(device)
    with computing_on(chosen), compute_threads(threads), viewed_in_wandb(wandb):
        corpus = corpus.pinned()
        paths = prepare_corpus(
            corpus, locate_corpus(corpus, store), store, console=console, recipes=[recipe]
        ).extended([recipe])
        return train_recipe(
            recipe,
            paths,
            store,
            checkpoint_every=checkpoint_every,
            heldout_every=heldout_every,
            minimal_pairs=pairs_task(minimal_pairs, compute, store, say=say_on(console)),
            compute=compute,
            console=console,
            deadline=deadline,
            fresh=fresh,
        )


@check_arguments(weight=(0, 1))
def merge_models(
    base: Path | str,
    adapted: Path | str,
    out: Path | str,
    *,
    weight: float = 0.5,
    method: Method = "linear",
    groups: Mapping[str, float] | None = None,
) -> Path:
    """Merge the weights of two models of one architecture.

    Args:
        base: Folder of a state or of a transformers model, or a hub id.
        adapted: The model that was adapted from it; its tokenizer and settings are kept. In Python:
            and the rows of embeddings that `base` lacks.
        out: Folder to write; it can be used like any model.
        weight: Share of ADAPTED, from 0 to 1.
        method: linear, or spherical (along the arc between two tensors).
        groups: Weight of a part: a layer (3), layers (0-5), embeddings or rest. In Python, weights
            by part; layers count from 0, `rest` is the last norm and the head, and a tied head is
            among the embeddings.

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
    from biphasic.config import parse_config
    from biphasic.export.merge import Merge, write_merge
    from biphasic.export.output import refuse_existing

    target = expanded(out)
    refuse_existing(target)
    settings = {"weight": weight, "method": method, "groups": dict(groups or {})}
    merge = parse_config(Merge, settings, where="merge")
    return write_merge(base, adapted, target, merge)


@check_arguments(devices=(1, None), vocab_size=(1, None))
def estimate(
    recipe: Recipe | Mapping[str, Any] | Path | str,
    *,
    devices: int = 1,
    device: str | None = None,
    vocab_size: int | None = None,
    mfu: float | None = None,
    flops: float | None = None,
    memory: float | None = None,
    overrides: Sequence[str] = (),
) -> ResourceEstimate:
    """Estimate memory and time of a recipe, without training it.

    Args:
        recipe: Recipe file (YAML). In Python also a recipe, whose model is a preset or dimensions.
        devices: Devices that train one model. In Python: each reads a part of the rows of a step.
        device: h100, h200, a100-80gb, a100-40gb, mi250x (one of its two dies) or cpu. Default:
            h100, or a GPU described by --flops.
        vocab_size: Vocabulary size. Default: 8192, as for a corpus.
        mfu: Share of the peak that model FLOPs reach. Default: 0.4, an assumption; for mi250x
            0.11, by the reference study's hours.
        flops: Peak FLOP/s of a device, e.g. 90e9 for a CPU.
        memory: Memory of a device in bytes, e.g. 24e9. Default: that of --device.
        overrides: Override a setting, e.g. model=610m.

    Returns:
        The estimate. No corpus is read: every row counts as full and as one document. Frozen
        parameters count like trained ones. Memory on a GPU is untested.

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
    from biphasic.data.building import DEFAULT_VOCAB_SIZE
    from biphasic.study.sizing.estimate import estimate_recipe
    from biphasic.study.sizing.result import choose_device
    from biphasic.study.spec.arms import read_recipe

    vocab_size = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    if mfu is not None and not 0 < mfu <= 1:
        raise ConfigError(f"mfu: {mfu:g}; give a share above 0 and at most 1")
    chosen = choose_device(device, flops=flops, memory=memory)
    recipe = read_recipe(recipe, overrides)
    return estimate_recipe(recipe, chosen, mfu=mfu, devices=devices, vocab_size=vocab_size)
