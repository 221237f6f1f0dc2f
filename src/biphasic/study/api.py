"""Studies and pretraining as calls: `run_study`, `report_study`, `pretrain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from biphasic.analysis.report import write_report
from biphasic.config import load_config, parse_config
from biphasic.data.corpus_config import CorpusConfig
from biphasic.study.config import StudyConfig
from biphasic.study.display import job_bar
from biphasic.study.jobs import TrainJob
from biphasic.study.prepare import locate_corpus, prepare_corpus
from biphasic.study.run import DEFAULT_ROOT, STORE, StudyOutcome, execute_study
from biphasic.training.memory import tune_allocator
from biphasic.training.recipe import Lineage, Recipe


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
    config = study if isinstance(study, StudyConfig) else load_study_file(study, overrides)
    tune_allocator()
    return execute_study(
        config,
        root=Path(root),
        num_workers=num_workers,
        num_threads=num_threads,
        console=console or Console(stderr=True),
    )


def load_study_file(path: Path | str, overrides: Iterable[str] = ()) -> StudyConfig:
    """Read a study file; its relative paths begin where it lies.

    Raises:
        ConfigError: It is wrong; the message names the setting.
    """
    return load_config(StudyConfig, path, overrides).anchored(Path(path).resolve().parent)


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
    corpus: CorpusConfig | Mapping[str, Any] | None = None,
    root: Path | str = DEFAULT_ROOT,
    checkpoint_every: int = 200,
    heldout_every: int = 100,
    console: Console | None = None,
) -> Path:
    """Train one recipe, or find it trained, and return the folder of its final state.

    transformers loads the folder as it is.

    Args:
        recipe: Model, phases, schedule, seeds.
        corpus: Text; the built-in documentation when None. `{"folder": "my-corpus"}` is one that
            `biphasic corpus build` made.
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
    if not isinstance(corpus, CorpusConfig):
        corpus = parse_config(CorpusConfig, corpus or {}, where="corpus")
    paths = prepare_corpus(corpus, locate_corpus(corpus, store), store, console=console)
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
