"""The Python interface of studies and pretraining: `run_study`, `pretrain`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from biphasic.config import parse_config
from biphasic.data.building.config import CorpusConfig
from biphasic.errors import ConfigError, DivergedError
from biphasic.execution.inline import run_here
from biphasic.execution.local import Local
from biphasic.execution.registry import load_executor
from biphasic.execution.scheduler import RetryPolicy
from biphasic.files import is_complete, verify_folder
from biphasic.locks import Say
from biphasic.model.compute.device import computing_on, parse_device
from biphasic.plugins import keep_files
from biphasic.progress import progress_console, say_on
from biphasic.study import DEFAULT_ROOT, STORE
from biphasic.study.by_name import link_states, readable_name
from biphasic.study.gc.pins import EVENT_FILES, forget_pin, record_pin
from biphasic.study.inputs.corpus import DataPaths, corpus_settings, locate_corpus, prepare_corpus
from biphasic.study.jobs.train import TrainJob
from biphasic.study.plan.finished import OtherCode
from biphasic.study.run.run import StudyOutcome, execute_study
from biphasic.study.spec.arms import read_recipe
from biphasic.study.spec.load import load_study
from biphasic.study.spec.naming import recipe_name
from biphasic.study.spec.study import StudyConfig
from biphasic.study.study import Study
from biphasic.tasks.folder import read_description
from biphasic.tasks.source import prepare_task
from biphasic.training.compute import ComputeConfig
from biphasic.training.intervals import CHECKPOINT_EVERY, HELDOUT_EVERY
from biphasic.training.lineage import Lineage
from biphasic.training.memory import tune_allocator
from biphasic.training.recipe import Recipe
from biphasic.training.records.log import viewed_in_wandb


def run_study(
    study: StudyConfig | Path | str,
    *,
    root: Path | str = DEFAULT_ROOT,
    overrides: Iterable[str] = (),
    workers: int | None = None,
    threads: int = 1,
    per_gpu: int = 1,
    tries: int = 3,
    site: Path | str | None = None,
    fresh: bool = False,
    wandb: str | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> StudyOutcome:
    """Run the missing jobs of a study and write its report.

    Args:
        study: A study file, or its settings.
        root: Folder of studies and of their shared store.
        overrides: Settings that replace those of the study file, as `a.b=value`.
        workers: Parallel jobs; one per core, or one on a GPU, when None.
        threads: Threads per job. Results may depend on it in the last bits.
        per_gpu: Jobs that share a GPU; a slot is a GPU or a core.
        tries: Maximum number of tries of a job with a transient failure, such as a killed process
            or a full disk. Permanent failures are not retried.
        site: Site file of a cluster to run on, which has the three settings above for its nodes;
            or an executor of your own, as `./mine.py:Mine`, its name, or a file with its settings.
        fresh: Delete what other code than the running one made (states, checkpoints, results), and
            make it again.
        wandb: Weights & Biases project that logs the training, offline unless `WANDB_MODE` is set;
            none when None.
        quiet: Show no progress.
        console: Console for progress; standard error when None.

    Raises:
        ConfigError: The study file is invalid, or `site` is given together with a setting of
            this machine.
        DataError: Data are missing or damaged.
        LockedError: Another process is running this study.
        StudyError: The root has another study of this name, from another file.

    Example:
        >>> from biphasic import run_study
        >>> outcome = run_study("study.yaml", overrides=["title=Mine"], workers=1)
        >>> outcome.failures, outcome.report.name
        ((), 'report.html')
    """
    if isinstance(study, StudyConfig) and any(True for _ in overrides):
        raise ConfigError("overrides: only for files; change the settings of the study instead")
    if site is not None and (workers, threads, per_gpu) != (None, 1, 1):
        raise ConfigError(
            "--site: cannot be combined with --workers, --threads or --per-gpu; set jobs_per_node, "
            "threads or jobs_per_gpu in the site file"
        )
    if isinstance(study, StudyConfig):
        config, file = study, None
    else:
        config, file = load_study(study, overrides), Path(study)
    tune_allocator()
    with viewed_in_wandb(wandb):
        return execute_study(
            Study(config, Path(root), file=file),
            executor=Local(workers=workers, threads=threads, per_gpu=per_gpu)
            if site is None
            else load_executor(site),
            policy=RetryPolicy(tries=tries),
            console=console or progress_console(quiet=quiet),
            fresh=fresh,
        )


def pretrain(
    recipe: Recipe | Mapping[str, Any] | Path | str,
    *,
    corpus: CorpusConfig | Mapping[str, Any] | Path | str | None = None,
    overrides: Iterable[str] = (),
    root: Path | str = DEFAULT_ROOT,
    checkpoint_every: int = CHECKPOINT_EVERY.default,
    heldout_every: int = HELDOUT_EVERY.default,
    compute: ComputeConfig | Mapping[str, Any] | None = None,
    minimal_pairs: Path | str | None = None,
    device: str | None = None,
    max_seconds: float | None = None,
    skip_steps: Iterable[int] = (),
    rewinds: int = 0,
    fresh: bool = False,
    wandb: str | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> Path:
    """Train one recipe and return the folder of its final state, which transformers can load.

    Training resumes from the latest state of the recipe in the store. A finished recipe is not
    trained again. If other code than the running one trained it, a line says so.

    Args:
        recipe: Model, phases, schedule, seeds; or a recipe file.
        corpus: A folder made by `biphasic corpus build`, a corpus file, settings of a corpus, or
            text, such as a folder of files; the built-in documentation when None.
        overrides: Settings that replace those of the recipe file, as `a.b=value`.
        root: Folder of the store.
        checkpoint_every: Updates between checkpoints; 0 for none.
        heldout_every: Updates between held-out evaluations; 0 for the last only.
        compute: How steps are computed, such as `{"max_tokens_per_pass": 16384}`; results change
            by rounding only.
        minimal_pairs: A file of minimal pairs such as BLiMP's, or a task file of kind `mp`. The
            accuracy on it is recorded with each held-out loss, and changes no number.
        device: `cpu`, `cuda` or `cuda:N`; the first GPU, or else the CPU, when None. It is
            recorded in the state's `environment`.
        max_seconds: After this time, save the progress and raise `StoppedError`.
        skip_steps: Steps to skip, beside those of the recipe.
        rewinds: Maximum number of times to go on by itself after a step that is not finite, from
            the weights before it and without it. The final state is then that of a recipe which
            skips these steps.
        fresh: As in `run_study`.
        wandb: As in `run_study`.
        quiet: Show no progress.
        console: Console for progress; standard error when None.

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
    deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
    recipe = read_recipe(recipe, overrides).skipping(skip_steps)
    recipe.check()
    if not recipe.phases:
        raise ConfigError(
            "phases: none, so there is nothing to train; give at least one, such as "
            "{objective: mlm, steps: 1000}"
        )
    compute = parse_compute(compute)
    compute.check_rows(recipe.placed_phases)
    chosen = parse_device(device)
    tune_allocator()
    console = console or progress_console(quiet=quiet)
    store = Path(root).resolve() / STORE
    corpus = corpus_settings(corpus)
    with computing_on(chosen), viewed_in_wandb(wandb):
        paths = prepare_corpus(
            corpus, locate_corpus(corpus, store), store, console=console, recipes=[recipe]
        ).extended([recipe])
        judged = _pairs_task(minimal_pairs, compute, store, say=say_on(console))
        return train_recipe(
            recipe,
            paths,
            store,
            checkpoint_every=checkpoint_every,
            heldout_every=heldout_every,
            minimal_pairs=judged,
            compute=compute,
            console=console,
            deadline=deadline,
            rewinds=rewinds,
            fresh=fresh,
        )


def _pairs_task(
    source: Path | str | None, compute: ComputeConfig, store: Path, *, say: Say
) -> Path | None:
    """Return the folder of a task of minimal pairs, by a file of pairs or a task file."""
    if source is None:
        return None
    if compute.processes > 1:
        raise ConfigError(
            "minimal_pairs: one process scores them; omit compute.processes, or score the finished "
            "state with `biphasic evaluate`"
        )
    is_task_file = Path(source).suffix in {".yaml", ".yml"}
    folder = prepare_task(str(source) if is_task_file else f"mp:{source}", store=store, say=say)
    kind = read_description(folder).kind
    if kind != "mp":
        raise ConfigError(f"minimal_pairs: {source} is a task of kind {kind}, not mp")
    return folder


def parse_compute(compute: ComputeConfig | Mapping[str, Any] | None) -> ComputeConfig:
    """Return compute settings after validation."""
    if isinstance(compute, ComputeConfig):
        return compute
    return parse_config(ComputeConfig, compute or {}, where="compute")


def train_recipe(
    recipe: Recipe,
    paths: DataPaths,
    store: Path,
    *,
    checkpoint_every: int,
    heldout_every: int,
    compute: ComputeConfig,
    console: Console,
    deadline: float = math.inf,
    heldout_objectives: tuple[Literal["clm", "mlm"], ...] = ("clm", "mlm"),
    minimal_pairs: Path | None = None,
    rewinds: int = 0,
    fresh: bool = False,
) -> Path:
    """Train a recipe on a finished corpus, like `pretrain`; `deadline` as in `run_here`."""
    keep_files(store, recipe)
    say, lineage = say_on(console), Lineage(recipe, paths.open().fingerprint)
    number = 0
    while True:
        try:
            start = _start(lineage, store, say=say, fresh=fresh)
            if number == 0:
                _say_cost(lineage, paths, store, compute, start=start, say=say)
            job = _pinned_job(
                lineage,
                paths,
                store,
                start=start,
                checkpoint_every=checkpoint_every,
                heldout_every=heldout_every,
                heldout_objectives=heldout_objectives,
                minimal_pairs=minimal_pairs,
                compute=compute,
            )
            run_here(job, console=console, deadline=deadline)
            names = {readable_name(recipe_name(job.recipe), job.id): job.id}
            link_states(store, "pretrain", names, say=say)
            return store / "states" / job.id
        except DivergedError as error:
            following = _after_fault(lineage, store, error) if number < rewinds else None
            if following is None:
                raise
            number += 1
            skipped = [*following.recipe.skip_steps]
            say(f"{error.divergence}; rewind {number} of {rewinds}, with skip_steps: {skipped}")
            if following is not lineage:
                forget_pin(store, lineage.identities[-1])
            lineage = following


def _say_cost(
    lineage: Lineage, paths: DataPaths, store: Path, compute: ComputeConfig, *, start: int, say: Say
) -> None:
    """Say what a training costs that is not begun."""
    from biphasic.study.sizing.speed import cost_here  # noqa: PLC0415 - loads torch

    recipe, identity = lineage.recipe, lineage.identities[-1]
    if start == recipe.total_steps or any(store.glob(f"progress/{identity}-from-*/step-*")):
        return
    vocab_size = paths.open().tokenizer.vocab_size
    if text := cost_here(recipe, start=start, vocab_size=vocab_size, compute=compute):
        say(text)


def _after_fault(lineage: Lineage, store: Path, error: DivergedError) -> Lineage | None:
    """Return the lineage that skips the step of a fault."""
    # Computed again, the step may be finite; and skipping cannot help if a held-out loss was not.
    from biphasic.training.fault import find_fault  # noqa: PLC0415 - loads torch

    fault = find_fault(store, lineage.identities[-1], error)
    if fault is None:
        return None
    if fault["again"]["is_finite"]:
        return lineage
    return Lineage(lineage.recipe.skipping([fault["step"]]), lineage.fingerprint)


def _start(lineage: Lineage, store: Path, *, say: Say, fresh: bool) -> int:
    """Return the step of the newest state of a lineage; with `fresh`, made by the running code."""
    identities = lineage.identities
    while True:
        states = [is_complete(store / "states" / name) for name in identities]
        start = max((step for step, is_there in enumerate(states) if is_there), default=0)
        segment = (identities[-1], start if start < len(identities) - 1 else 0)
        other = OtherCode.of(store, [identities[start]], [segment])
        if not (other and fresh):
            break
        other.delete(say=say)
    if other:
        say(other.note())
    return start


def _pinned_job(
    lineage: Lineage, paths: DataPaths, store: Path, *, start: int, **settings: Any
) -> TrainJob:
    """Return the job that trains a lineage from its newest state, which `clean` now keeps."""
    recipe, identities = lineage.recipe, lineage.identities
    if start == recipe.total_steps:
        remedy, name = "delete the folder and run again", identities[-1]
        verify_folder(store / "states" / name, remedy=remedy, identity=name)
    record_pin(
        store,
        identities[-1],
        made_by="pretrain",
        states=[identities[-1], *([identities[start]] if start else [])],
        data=[paths.train.parent, *paths.corpora],
    )
    return TrainJob(
        id=identities[-1],
        label=f"training {recipe.total_steps - start} steps",
        store=store,
        data=paths,
        recipe=recipe,
        start=start if start < recipe.total_steps else 0,
        end=recipe.total_steps,
        tensorboard=store / EVENT_FILES / readable_name(recipe_name(recipe), identities[-1]),
        **settings,
    )
