"""Results in a folder: a study's, or those of other tools.

Tools that fine-tune write `results/MODEL/TASK/DATASET/lrX_sdS/results.json`; `others.py` reads
those with a score for each example.

If a model was trained on another set than it is tested on, as in retrieval, the run's folder starts
with that set: `msmarco_pairs_lr1e-04_sd0`. Only runs trained on the same set are compared.

The store of a root holds the results of `evaluate`, whose pins name the encoders.

This is the layout of the reference study's public evaluation code: for each split a score and the
per-example scores, `{"validation": {"score", "scores_i"}, "test": {...}}`, as shares between 0 and
1. Unreadable results are reported and omitted, never averaged. Of a category with all datasets of
the reference study, only these are used unless others are chosen: its released folders have more
datasets than its averages.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from biphasic.amounts import rate as rate_text
from biphasic.analysis.estimate import GridScore, best_per_seed, grid
from biphasic.analysis.records import Problem, StudyRecords, load_records
from biphasic.analysis.scores.examples import (
    ExampleReader,
    ExampleScores,
    RunExamples,
    check_value,
    mean_examples,
)
from biphasic.analysis.scores.model_names import model_from_name
from biphasic.analysis.scores.others import OtherResults, read_others
from biphasic.analysis.scores.reference import EVERY, DatasetChoice, paper_datasets
from biphasic.analysis.scores.source import read_runs, study_scores
from biphasic.analysis.scores.table import DatasetInfo, Scores, score_of_grid, with_averages
from biphasic.analysis.text import listing
from biphasic.errors import CheckpointError, DataError, is_system_fault, reading
from biphasic.files import digest, is_file, is_folder, read_json_object
from biphasic.records import STUDY, Convention, ResultRecord
from biphasic.store import RESULT, STORE, is_complete, read_result_record, result_folder

RESULTS = "results.json"
RUN_FOLDER = "MODEL/TASK/DATASET/[TRAINSET_]lrX_sdS"
_RUN = re.compile(r"(?:(?P<trained_on>.+)_)?lr(?P<rate>[^_]+)_sd(?P<seed>\d+)")
_METRIC = "score"
Cell = tuple[str, str]  # names of model and dataset
# Task, dataset and training set, empty if it is the dataset itself; equal for comparable runs.
Column = tuple[str, str, str]


@dataclass(frozen=True)
class Layout:
    """All runs with scores below a folder, and problems of the others."""

    folder: Path
    datasets: Mapping[str, DatasetInfo]
    runs: Mapping[Cell, tuple[GridScore[Any], ...]]
    problems: tuple[Problem, ...]
    is_store: bool = False  # Whether runs are records of a store, instead of files.

    def scores(self, convention: Convention = "standard") -> Scores:
        """Return the scores, with the average over each task with several datasets."""
        chosen = {cell: best_per_seed(runs) for cell, runs in self.runs.items()}
        models = dict.fromkeys(model for model, _ in self.runs)
        grids = _expected(self.runs)
        scores = Scores(
            source=self.folder.name,
            convention=convention,
            models=tuple(model_from_name(name) for name in models),
            datasets=tuple(self.datasets.values()),
            cells={
                (model, dataset): score_of_grid(
                    runs,
                    convention=convention,
                    # `evaluate` extends the grid of each encoder by its own scores.
                    is_complete=self.is_store
                    or {(run.rate, run.seed) for run in runs} == grids[dataset],
                )
                for (model, dataset), runs in self.runs.items()
            },
            examples=self._store_reader(chosen) if self.is_store else _example_reader(chosen),
        )
        return with_averages(scores)

    def _store_reader(self, chosen: Mapping[Cell, Sequence[GridScore[Any]]]) -> ExampleReader:
        def read(model: str, dataset: str) -> ExampleScores:
            results = [run.run for run in chosen.get((model, dataset), ())]
            if not results:
                raise DataError(f"{model} on {dataset}: no run has a score")
            metric = self.datasets[dataset].metric
            ids, clusters, by_result = read_runs(model, results, metric, self.folder)
            return ExampleScores(ids, {one.seed: by_result[one.id] for one in results}, clusters)

        return read


Results = StudyRecords | Layout | OtherResults


def read_results(folder: Path, choice: DatasetChoice) -> Results:
    """Read the chosen datasets of a study's folder, or of one with results of other tools."""
    folder = folder.resolve()
    if not is_file(folder / STUDY):
        for store in (folder, folder / STORE):
            if is_folder(store / RESULT.place):
                return read_store(store, choice)
        has_layout = not folder.is_dir() or next(folder.rglob(RESULTS), None) is not None
        others = None if has_layout else read_others(folder, choice)
        return others or read_layout(folder, choice)
    records = load_records(folder)
    left_out = choice.left_out(task.name for task in records.tasks)
    return records.without(left_out) if left_out else records


def read_store(store: Path, choice: DatasetChoice = EVERY) -> Layout:
    """Read the results of `evaluate` in a store: a dataset for each task and its settings."""
    problems: list[Problem] = []
    names: dict[str, set[str]] = defaultdict(set)  # identities of encoders by name
    # Of a task, results with other examples or settings are another dataset.
    cells: dict[tuple[str, str, str], dict[str, ResultRecord]] = defaultdict(dict)
    settings: dict[str, set[str]] = defaultdict(set)
    for path in sorted((store / "pins").glob("*.json")):
        pin = read_json_object(path)
        if pin.get("made_by") != "evaluate":
            continue
        for folder in (result_folder(store, result) for result in pin["results"]):
            if not is_complete(folder):  # a rate beyond the grid that was not due
                continue
            try:
                result = read_result_record(folder)
            except CheckpointError as error:
                problems.append(Problem("damaged", str(error)))
                continue
            if not result.state:  # a floor or reference
                continue
            name = pin.get("name") or result.state[:12]
            read_by = [result.examples_sha256, result.trained_on, result.protocol, result.metric]
            how = digest(read_by)[:6]
            names[name].add(result.state)
            settings[result.task].add(how)
            name = name if names[name] == {result.state} else f"{name} {result.state[:6]}"
            cells[name, result.task, how][result.id] = result
    datasets: dict[str, DatasetInfo] = {}
    runs: dict[Cell, tuple[GridScore[Any], ...]] = {}
    for (model, task, how), of_cell in cells.items():
        dataset = task if len(settings[task]) == 1 else f"{task} {how}"
        one, *_ = of_cell.values()
        info = DatasetInfo(
            dataset,
            one.kind.upper(),
            one.metric,
            trained_on=one.trained_on or "",
            data=one.examples_sha256 or "",
            about=one.about,
        )
        if found := tuple(grid(of_cell.values(), metric=one.metric)):
            runs[model, dataset], datasets[dataset] = found, info
    left_out = choice.left_out(datasets)
    runs = {cell: found for cell, found in runs.items() if cell[1] not in left_out}
    if not runs:
        problem = f"; {problems[0].text}" if problems else ""
        raise DataError(
            f"{store}: no results of 'biphasic evaluate'; for those of a study, give its own folder"
            f"{problem}"
        )
    for task in (task for task, several in settings.items() if len(several) > 1):
        text = f"{task}: evaluated with {len(settings[task])} settings or versions of its data"
        problems.append(Problem("mixed", f"{text}; each is a dataset of its own"))
    kept = {name: info for name, info in datasets.items() if name not in left_out}
    return Layout(store, kept, runs, tuple(problems), is_store=True)


def scores_of(results: Results, convention: Convention | None) -> Scores:
    """Return the scores; the default convention is the study's, else standard."""
    if isinstance(results, StudyRecords):
        return study_scores(results, convention)
    return results.scores(convention or "standard")


def read_layout(folder: Path, choice: DatasetChoice = EVERY) -> Layout:
    """Read every run of the chosen datasets below a folder."""
    # The folder holds models, or `results/` with them.
    root = folder / "results" if (folder / "results").is_dir() else folder
    if not root.is_dir():
        raise DataError(f"{folder}: no such folder")
    problems: list[Problem] = []
    all_runs: dict[Cell, dict[tuple[float, int], list[GridScore[Path]]]] = defaultdict(dict)
    places = [*_places(root, problems)]
    columns = _choose(_columns(places), choice, problems)
    for place in (place for place in places if place.column in columns):
        run = _read_run(place, root, problems)
        if run is not None:
            cell = place.model, columns[place.column].name
            all_runs[cell].setdefault((run.rate, run.seed), []).append(run)
    runs = {cell: tuple(_unique(cell, by_place, problems)) for cell, by_place in all_runs.items()}
    runs = {cell: kept for cell, kept in sorted(runs.items()) if kept}
    if not runs:
        problem = f"; {problems[0].text}" if problems else ""
        raise DataError(
            f"{folder}: no results; give the folder of a study, the root of 'biphasic evaluate', "
            f"or one with {RUN_FOLDER}/{RESULTS}, results of lm-evaluation-harness or mteb, or "
            f"tables with 'id' and 'score' (docs/analyze.md){problem}"
        )
    problems += _missing(runs)
    used = {dataset for _, dataset in runs}
    kept = {about.name: about for about in columns.values() if about.name in used}
    return Layout(root, kept, runs, tuple(problems))


@dataclass(frozen=True)
class _Place:
    """A parsed run folder."""

    folder: Path
    model: str
    column: Column
    rate: float
    seed: int


def _places(root: Path, problems: list[Problem]) -> Iterator[_Place]:
    """Yield folders with results, and folders with the name of a run, in order of their names."""

    def stop(error: OSError) -> None:
        raise error  # `rglob` would skip the folder

    walked = [(Path(place), names) for place, _, names in os.walk(root, onerror=stop)]
    with_results = {place for place, names in walked if RESULTS in names}
    above = {parent for path in with_results for parent in path.parents}
    without = {place for place, _ in walked if _RUN.fullmatch(place.name)} - above - {root}
    for folder in sorted(with_results | without):
        parts = folder.relative_to(root).parts
        where = folder.relative_to(root).as_posix()
        match = _RUN.fullmatch(folder.name)
        rate = _rate(match["rate"]) if match else None
        if match is None or rate is None or len(parts) < 4:
            problems.append(Problem("damaged", f"{where}: not named {RUN_FOLDER}; skipped"))
            continue
        *model, task, dataset, _ = parts
        column = task, dataset, match["trained_on"] or ""
        yield _Place(folder, "/".join(model), column, rate, int(match["seed"]))


def _rate(text: str) -> float | None:
    try:
        rate = float(text)
    except ValueError:
        return None
    return rate if math.isfinite(rate) else None


def _columns(places: Iterable[_Place]) -> dict[Column, DatasetInfo]:
    """Return the display name of each dataset and training set, in order."""
    # A name includes the task if two tasks have a dataset of that name. If models were trained on
    # different sets for a task's dataset, each training set forms its own task, so averages and
    # comparisons do not mix them.
    keys = sorted({place.column for place in places})
    tasks: dict[str, set[str]] = defaultdict(set)
    sets: dict[tuple[str, str], set[str]] = defaultdict(set)
    for task, dataset, trained_on in keys:
        tasks[dataset].add(task)
        sets[task, dataset].add(trained_on)
    mixed = {task for (task, _), trained_on in sets.items() if len(trained_on) > 1}
    columns = {}
    for task, dataset, trained_on in keys:
        name = dataset if len(tasks[dataset]) == 1 else f"{task}/{dataset}"
        suffix = f" ({trained_on})" if task in mixed and trained_on else ""
        columns[task, dataset, trained_on] = DatasetInfo(
            f"{name}{suffix}", f"{task.upper()}{suffix}", _METRIC, trained_on=trained_on
        )
    return dict(sorted(columns.items(), key=lambda item: item[1].task))


def _choose(
    columns: Mapping[Column, DatasetInfo], choice: DatasetChoice, problems: list[Problem]
) -> dict[Column, DatasetInfo]:
    """Return the chosen columns, with the paper's metrics where they are the paper's."""
    infos = [*columns.values()]
    theirs = paper_datasets(infos)
    tasks = {dataset.task for dataset in theirs.values()}
    others = [info.name for info in infos if info.task in tasks and info.name not in theirs]
    left_out = choice.left_out([info.name for info in infos], default=others)
    if named := [name for name in others if name in left_out and not choice.only]:
        text = "not in the reference study's averages; --dataset chooses datasets"
        problems.append(Problem("left out", f"{listing(named)}: {text}"))
    return {
        column: replace(info, metric=theirs[info.name].metric) if info.name in theirs else info
        for column, info in columns.items()
        if info.name not in left_out
    }


def _read_run(place: _Place, root: Path, problems: list[Problem]) -> GridScore[Path] | None:
    path = place.folder / RESULTS
    where = path.relative_to(root).as_posix()
    if not is_file(path):
        problems.append(Problem("missing", f"{where}: missing; the run has not finished"))
        return None
    try:
        scores = _read_scores(path, where)
    except DataError as error:
        problems.append(Problem("damaged", str(error)))
        return None
    return GridScore(place.rate, place.seed, scores[0], scores[1], path)


def _read_scores(path: Path, where: str) -> list[float]:
    with reading(where, DataError, remedy="skipped"):
        try:
            raw = json.loads(path.read_text("utf-8"))
            return [_share(raw, split) for split in ("validation", "test")]
        except ValueError as error:  # includes invalid JSON and invalid UTF-8
            raise DataError(f"{where}: {error}; skipped") from None


def _share(raw: Any, split: str) -> float:
    """Return the score of a split."""
    part = raw.get(split) if isinstance(raw, dict) else None
    score = part.get("score") if isinstance(part, dict) else None
    if not isinstance(score, int | float) or isinstance(score, bool):
        raise ValueError(f"no number as '{split}.score'")
    if isinstance(score, float) and not math.isfinite(score):
        raise ValueError(f"'{split}.score' is {score}")
    if not -1 <= score <= 1:
        raise ValueError(f"'{split}.score' is {score}, not a share between 0 and 1")
    return float(score)


def _unique(
    cell: Cell, by_place: Mapping[tuple[float, int], list[GridScore[Path]]], problems: list[Problem]
) -> Iterator[GridScore[Path]]:
    """Yield one run for each rate and seed; none if several contradict each other."""
    for (rate, seed), runs in by_place.items():
        if len(runs) == 1:
            yield runs[0]
            continue
        where = f"{cell[0]} on {cell[1]}, learning rate {rate_text(rate)}, seed {seed}"
        folders = ", ".join(run.run.parent.name for run in runs)
        are_equal = len({(run.validation, run.test) for run in runs}) == 1
        outcome = "equal; one is used" if are_equal else "different; all skipped"
        problems.append(Problem("damaged", f"{where}: duplicate runs ({folders}), {outcome}"))
        if are_equal:
            yield runs[0]


def _expected(runs: Mapping[Cell, Iterable[GridScore[Path]]]) -> dict[str, set[tuple[float, int]]]:
    """Return the grid of each dataset: all rates and seeds of any model."""
    rates: dict[str, set[float]] = defaultdict(set)
    seeds: dict[str, set[int]] = defaultdict(set)
    for (_, dataset), of_cell in runs.items():
        for run in of_cell:
            rates[dataset].add(run.rate)
            seeds[dataset].add(run.seed)
    return {name: {(r, s) for r in rates[name] for s in seeds[name]} for name in rates}


def _missing(runs: Mapping[Cell, tuple[GridScore[Path], ...]]) -> Iterator[Problem]:
    """Report datasets and runs that only other models have."""
    grids = _expected(runs)
    for model in dict.fromkeys(model for model, _ in runs):
        for dataset, expected in grids.items():
            has = {(run.rate, run.seed) for run in runs.get((model, dataset), ())}
            lacks = sorted(expected - has)
            if not has:
                yield Problem("missing", f"{model} has no results on {dataset}")
            elif lacks:
                points = ", ".join(f"{rate_text(rate)} with seed {seed}" for rate, seed in lacks)
                text = (
                    f"{len(lacks)} of {len(expected)} runs without a score: learning rate {points}"
                )
                yield Problem("missing", f"{model} on {dataset}: {text}")


def _example_reader(chosen: Mapping[Cell, tuple[GridScore[Path], ...]]) -> ExampleReader:
    """Return a reader of the examples of the selected runs, whose order identifies them."""

    def read(model: str, dataset: str) -> ExampleScores:
        runs = chosen.get((model, dataset), ())
        if not runs:
            raise DataError(f"{model} on {dataset}: no run has a score")
        by_seed = {run.seed: _read_examples(run) for run in runs}
        sizes = {examples.terms.shape[1] for examples in by_seed.values()}
        if len(sizes) > 1:
            raise DataError(f"{model} on {dataset}: seeds have different numbers of test examples")
        return ExampleScores(tuple(map(str, range(sizes.pop()))), by_seed)

    return read


def _read_examples(run: GridScore[Path]) -> RunExamples:
    where = "/".join(run.run.parts[-5:-1])
    with reading(where, DataError):
        try:
            scores = json.loads(run.run.read_text("utf-8"))["test"]["scores_i"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if is_system_fault(error):
                raise
            raise DataError(f"{where}: no scores of single examples") from None
    if not isinstance(scores, list) or not scores or not all(map(_is_number, scores)):
        raise DataError(f"{where}: 'test.scores_i' is not a list of numbers")
    examples = mean_examples([float(score) for score in scores])
    check_value(examples, run.test, where=where)
    return examples


def _is_number(value: object) -> bool:
    # JSON integers can be larger than any float.
    return isinstance(value, bool | int | float) and abs(value) <= sys.float_info.max
