"""What the command line does, as calls: `pretrain`, `evaluate`, `run_study`, `report_study`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from biphasic.analysis.load import Outcome
from biphasic.analysis.report import write_report
from biphasic.analysis.stats import Estimate, estimate, scores_on_test, select
from biphasic.config import load_config, nearest, parse_config
from biphasic.errors import ConfigError, DataError
from biphasic.files import MANIFEST, digest, file_sha256, read_json
from biphasic.records import Convention, ResultRecord, RunRecord, parse_record
from biphasic.study.config import CorpusConfig, FinetuningConfig, StudyConfig
from biphasic.study.display import job_bar
from biphasic.study.jobs import FinetuneJob, GridRun, TrainJob
from biphasic.study.plan import grid_runs, group_determinants
from biphasic.study.prepare import prepare
from biphasic.study.run import STORE, StudyOutcome, execute_study
from biphasic.tasks.builtin import BUILTIN_TASKS
from biphasic.tasks.formats import load_task
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training.memory import tune_allocator
from biphasic.training.recipe import Lineage, Recipe

DEFAULT_ROOT = "runs"


@dataclass(frozen=True)
class Evaluation:
    """An encoder on one task.

    Attributes:
        task: The task's name.
        metric: The metric that decides it.
        convention: How the interval was computed.
        estimate: Mean of the selected runs' test scores with its interval; None if all diverged.
        results: Every fine-tuning of the grid.
    """

    task: str
    metric: str
    convention: Convention
    estimate: Estimate | None
    results: tuple[ResultRecord, ...]


def run_study(
    study: StudyConfig | Path | str,
    *,
    root: Path | str = DEFAULT_ROOT,
    overrides: Iterable[str] = (),
    num_workers: int | None = None,
    num_threads: int = 1,
    console: Console | None = None,
) -> StudyOutcome:
    """Run what a study still lacks and write its report.

    Args:
        study: A study file, or its settings.
        root: Folder for the study's folder, and for the store that studies share.
        overrides: Settings on top of the file's, as `a.b=value`.
        num_workers: Jobs at once; as many as cores allow when None.
        num_threads: Threads per job. Results may depend on it in the last bits.
        console: Where progress is shown; standard error when None.

    Raises:
        ConfigError: The study file is wrong.
        DataError: Data are missing or damaged.
        LockedError: Another process is running this study.
    """
    config = study if isinstance(study, StudyConfig) else load_config(StudyConfig, study, overrides)
    tune_allocator()
    return execute_study(
        config,
        root=Path(root),
        num_workers=num_workers,
        num_threads=num_threads,
        console=console or Console(stderr=True),
    )


def report_study(folder: Path | str) -> Path:
    """Write a study's report anew from its records; return the path of `report.html`.

    Raises:
        StudyError: The folder holds no study.
    """
    folder = Path(folder).resolve()
    return write_report(folder, folder.parent / STORE)


def pretrain(
    recipe: Recipe | Mapping[str, Any],
    *,
    corpus: CorpusConfig | None = None,
    root: Path | str = DEFAULT_ROOT,
    checkpoint_every: int = 200,
    heldout_every: int = 100,
    console: Console | None = None,
) -> Path:
    """Train one recipe, or find it trained, and return the folder of its final state.

    transformers loads the folder as it is.

    Args:
        recipe: Model, phases, schedule, seeds.
        corpus: Text; the built-in documentation when None.
        root: Folder of the store.
        checkpoint_every: Updates between checkpoints; 0 for none.
        heldout_every: Updates between held-out evaluations; 0 for the last only.
        console: Where progress is shown; standard error when None.

    Raises:
        ConfigError: The recipe is wrong.
        TrainingError: Loss or gradient are not finite.
    """
    if not isinstance(recipe, Recipe):
        recipe = parse_config(Recipe, recipe, where="recipe")
    tune_allocator()
    console = console or Console(stderr=True)
    store = Path(root).resolve() / STORE
    paths = prepare(corpus or CorpusConfig(), store, say=console.print)
    identity = Lineage(recipe, paths.open().ground).identities[-1]
    job = TrainJob(
        id=identity,
        label=f"pretraining {recipe.total_steps} steps",
        store=store,
        data=paths,
        recipe=recipe,
        start=0,
        end=recipe.total_steps,
        checkpoint_every=checkpoint_every,
        heldout_every=heldout_every,
        tensorboard=store / "tensorboard" / identity,
    )
    with job_bar(console, job) as report:
        job.run(report)
    return store / "states" / identity


def evaluate(
    model: Path | str,
    task: Path | str,
    *,
    learning_rates: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    protocol: FinetuneProtocol | Mapping[str, Any] | None = None,
    corpus: CorpusConfig | None = None,
    convention: Convention = "standard",
    root: Path | str = DEFAULT_ROOT,
    console: Console | None = None,
) -> Evaluation:
    """Fine-tune an encoder on a task over a grid, and estimate its score.

    For each seed, the learning rate with the best validation score is chosen; the estimate is the
    mean of the chosen runs' test scores.

    Args:
        model: Folder of a state, or of any model that transformers loads, with a fast tokenizer.
        task: A built-in task's name, or a folder in the format of docs/formats.md.
        learning_rates: Peak rates; the study's six when None.
        seeds: Seeds; the study's five when None.
        protocol: All other constants; the study's when None. Inputs may be as long as the
            model's unless `max_seqlen` says otherwise.
        corpus: Corpus whose built-in tasks are meant; the default one when None.
        convention: How the interval is computed.
        root: Folder of the store.
        console: Where progress is shown; standard error when None.

    Raises:
        ConfigError: A setting is wrong.
        DataError: Model or task are missing or damaged.
        ModelError: transformers cannot load the model, or it cannot be an encoder.
    """
    tune_allocator()
    console = console or Console(stderr=True)
    store = Path(root).resolve() / STORE
    encoder = Path(model).resolve()
    state = encoder_identity(encoder)
    if not isinstance(protocol, FinetuneProtocol):
        settings = {"max_seqlen": _longest_input(encoder), **(protocol or {})}
        protocol = parse_config(FinetuneProtocol, settings, where="protocol")
    grid = {"learning_rates": learning_rates, "seeds": seeds, "protocol": protocol}
    finetuning = parse_config(
        FinetuningConfig,
        {name: value for name, value in grid.items() if value is not None},
        where="evaluate",
    )
    folder = _task_folder(task, corpus or CorpusConfig(), store, console)
    info = load_task(folder).info
    shared = group_determinants(state, info, protocol)
    runs = grid_runs(shared, finetuning)
    job = FinetuneJob(
        id=digest(shared),
        label=f"{encoder.name[:12]} on {info.name}",
        store=store,
        tokenizer=encoder,
        task=folder,
        encoder=encoder,
        state=state,
        protocol=protocol,
        runs=runs,
    )
    with job_bar(console, job) as report:
        job.run(report)
    outcomes = [_outcome(run, store, task=info.name) for run in runs]
    selected = select(outcomes, metric=info.metric)
    return Evaluation(
        task=info.name,
        metric=info.metric,
        convention=convention,
        estimate=estimate(scores_on_test(selected, metric=info.metric), convention=convention),
        results=tuple(outcome.result for outcome in outcomes if outcome.result),
    )


def encoder_identity(folder: Path) -> str:
    """Return what names a model: its identity if it is a state, else a hash of its files.

    Raises:
        DataError: The folder holds no model.
    """
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: no model here (no config.json)")
    if (folder / "state.json").is_file():
        return read_json(folder / "state.json")["identity"]
    names = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix in {".json", ".safetensors"} and path.name != MANIFEST
    )
    return digest({name: file_sha256(folder / name) for name in names})


def _longest_input(encoder: Path) -> int:
    """Return the longest input that a model was made for, in tokens, up to the study's 2,048."""
    return min(read_json(encoder / "config.json").get("max_position_embeddings", 512), 2048)


def _task_folder(task: Path | str, corpus: CorpusConfig, store: Path, console: Console) -> Path:
    if Path(task).is_dir():
        return Path(task).resolve()
    if str(task) not in BUILTIN_TASKS:
        raise ConfigError(
            f"task '{task}': neither a folder nor a built-in task"
            f"{nearest(str(task), BUILTIN_TASKS)}"
        )
    return prepare(corpus, store, say=console.print).tasks / str(task)


def _outcome(run: GridRun, store: Path, *, task: str) -> Outcome:
    record = RunRecord(
        id=run.id, arm="encoder", task=task, learning_rate=run.learning_rate, seed=run.seed
    )
    path = store / "finetunes" / run.id / "result.json"
    result = parse_record(ResultRecord, read_json(path), where=str(path))
    return Outcome(run=record, status=result.status, result=result)
