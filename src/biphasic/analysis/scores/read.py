"""Results in a folder: a study's, those of `evaluate` in a store, or those of other tools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from biphasic.analysis.estimate import GridScore, grid
from biphasic.analysis.records import Problem, StudyRecords, load_records
from biphasic.analysis.scores.examples import ExampleScores
from biphasic.analysis.scores.layout import RESULTS, Cell, Layout, read_layout
from biphasic.analysis.scores.others import read_others
from biphasic.analysis.scores.reference import EVERY, DatasetChoice
from biphasic.analysis.scores.source import read_runs, study_scores
from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.errors import CheckpointError, DataError
from biphasic.files import digest, is_file, is_folder, read_json_object
from biphasic.records import STUDY, Convention, ResultRecord
from biphasic.store import RESULT, STORE, Store

Results = StudyRecords | Layout


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
        for identity in pin["results"]:
            if not Store(store).has(RESULT, identity):  # a rate beyond the grid that was not due
                continue
            try:
                result = Store(store).result(identity)
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

    def read(model: str, dataset: str, runs: Sequence[GridScore[Any]]) -> ExampleScores:
        results, metric = [run.run for run in runs], kept[dataset].metric
        ids, clusters, by_result = read_runs(model, results, metric, store)
        return ExampleScores(ids, {one.seed: by_result[one.id] for one in results}, clusters)

    # `evaluate` extends the grid of each encoder by its own scores.
    return Layout(store, kept, runs, tuple(problems), read, has_grid=False)


def scores_of(results: Results, convention: Convention | None) -> Scores:
    """Return the scores; the default convention is the study's, else standard."""
    if isinstance(results, StudyRecords):
        return study_scores(results, convention)
    return results.scores(convention or "standard")
