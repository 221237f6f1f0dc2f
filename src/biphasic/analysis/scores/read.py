"""Results in a folder: a study's, those of `evaluate` in a store, or those of other tools.

Other tools have a score for each example, all in one folder:

- lm-evaluation-harness with `--log_samples`: `MODEL/samples_TASK_TIME.jsonl`. Each metric and each
  filter is a dataset.
- mteb: `MODEL/REVISION/TASK.json`, a score for each task. The benchmark is the dataset, and its
  tasks are the examples.
- Tables, `MODEL/DATASET.jsonl` or `.csv`, with the columns `id` and `score`, `correct`, or a
  single other one that is named after its metric. Examples with the same `cluster` are not
  independent.

Models are compared on the examples that all of them have. What cannot be used is reported.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from biphasic.amounts import count
from biphasic.analysis.estimate import GridScore, grid
from biphasic.analysis.records import Problem, StudyRecords, describe_run, load_records
from biphasic.analysis.scores.examples import ExampleScores, mean_examples
from biphasic.analysis.scores.layout import RESULTS, Cell, Layout, read_layout
from biphasic.analysis.scores.reference import EVERY, DatasetChoice
from biphasic.analysis.scores.source import read_runs, study_scores
from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.errors import CheckpointError, DataError, reading, repeated
from biphasic.facts import KindFacts, metric_facts
from biphasic.files import digest, is_file, is_folder, json_value, read_json_object
from biphasic.records import STUDY, Convention, ResultRecord
from biphasic.rows import rows
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
    cells: dict[tuple[str, str, str, str], dict[str, ResultRecord]] = defaultdict(dict)
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
            cells[name, result.state, result.task, how][result.id] = result
    datasets: dict[str, DatasetInfo] = {}
    runs: dict[Cell, tuple[GridScore[Any], ...]] = {}
    tried: dict[Cell, set[tuple[float, int]]] = {}
    for (name, state, task, how), of_cell in cells.items():
        model = name if len(names[name]) == 1 else f"{name} {state[:6]}"
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
            tried[model, dataset] = {(run.learning_rate, run.seed) for run in of_cell.values()}
        problems += [
            Problem("diverged", f"{describe_run(model, run)}: diverged after {run.steps} steps")
            for run in of_cell.values()
            if run.status == "diverged"
        ]
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
    return Layout(store, kept, runs, tuple(problems), read, tried=tried)


def scores_of(results: Results, convention: Convention | None) -> Scores:
    """Return the scores; the default convention is the study's, else standard."""
    if isinstance(results, StudyRecords):
        return study_scores(results, convention)
    return results.scores(convention or "standard")


_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d\d-\d\dT[\d.:-]+)\.jsonl")
_META, _SUMMARY = "model_meta.json", "results_"
_BENCHMARK = "MTEB"
_TABLES = (".jsonl", ".csv")
_SCORES = ("score", "correct")
_WORDS = {"true": 1.0, "false": 0.0}
CLUSTER = "cluster"  # column of tables
Names = dict[str, str]  # by the name of an example


@dataclass(frozen=True)
class Values:
    """What a file says about the examples of a dataset, by their names."""

    data: str  # of the data that the examples are of; filters of a task share it
    dataset: str
    metric: str
    scores: dict[str, float] = field(default_factory=dict)
    hashes: Names = field(default_factory=dict)  # what identifies the data of an example


Cells = dict[tuple[str, str, str, str], Values]  # by model, data, dataset and metric


@dataclass(frozen=True)
class _Notes:
    """What files say about results beside their scores."""

    problems: list[Problem]
    # Metrics that are better if lower: folder of a model, task and metric.
    lower: set[tuple[Path, str, str]]
    clusters: dict[str, Names]  # cluster of each example, by data


def read_others(folder: Path, choice: DatasetChoice) -> Layout | None:
    """Read the results of other tools below a folder; None if there are none."""
    notes = _Notes([], set(), defaultdict(dict))
    cells = _read_all(folder, notes)
    if not cells:
        if notes.problems:
            raise DataError(f"{folder}: {notes.problems[0].text}")
        return None
    differing = _differing(cells, notes.problems)
    metrics: dict[str, set[str]] = defaultdict(set)
    for _, _, dataset, metric in cells:
        metrics[dataset].add(metric)
    by_name: dict[str, dict[str, Values]] = defaultdict(dict)
    for (model, _, dataset, metric), values in sorted(cells.items(), key=lambda item: item[0]):
        name = dataset if len(metrics[dataset]) == 1 else f"{dataset} {metric}"
        by_name[name][model] = values
    left_out = choice.left_out(by_name)
    datasets, found = {}, {}
    for name, by_model in by_name.items():
        if name not in left_out and (common := _common(name, by_model, notes.problems)):
            one = next(iter(by_model.values()))
            facts = metric_facts(one.metric)
            about = KindFacts(facts.title, (facts,), is_trained=False)
            datasets[name] = DatasetInfo(
                name, one.metric.upper(), one.metric, data=one.data, about=about,
                example="task" if one.data == _BENCHMARK else DatasetInfo.example,
            )  # fmt: skip
            for model, values in by_model.items():
                scores = {key: values.scores[key] for key in common}
                mean = fmean(scores.values())
                found[model, name] = [GridScore(0.0, 0, mean, mean, scores)]
    if not datasets:
        raise DataError(f"{folder}: {notes.problems[-1].text}")

    def read(
        model: str, dataset: str, runs: Sequence[GridScore[dict[str, float]]]
    ) -> ExampleScores:
        values, data = runs[0].run, datasets[dataset].data
        of_data = notes.clusters.get(data, {})
        if of_data and not values.keys() <= of_data.keys():
            raise DataError(f"{dataset}: only some of the examples have a '{CLUSTER}'")
        clusters = tuple(of_data[key] for key in values) if of_data else ()
        # Models that read other data under one name have no example in common there.
        own = differing.get((model, data), {})
        ids = tuple(f"{key} {own[key]}" if key in own else key for key in values)
        return ExampleScores(ids, {0: mean_examples([*values.values()])}, clusters)

    return Layout(folder, datasets, found, tuple(notes.problems), read, is_by_example=True)


def _common(dataset: str, by_model: Mapping[str, Values], problems: list[Problem]) -> list[str]:
    """Return the examples that all models have, in order; report what is left out."""
    every = {key for values in by_model.values() for key in values.scores}
    shared = every.intersection(*(values.scores for values in by_model.values()))
    for model, values in by_model.items():
        if missing := len(every) - len(values.scores):
            text = f"no score for {missing:,} of {count(len(every), 'example')}"
            rest = f"all models are compared on the {len(shared):,} that they share"
            problems.append(Problem("missing", f"{model} on {dataset}: {text}; {rest}"))
    return sorted(shared)


def _read_all(folder: Path, notes: _Notes) -> Cells:
    """Read every file that has results; no score replaces another."""
    cells: Cells = {}
    names, places = _model_names(folder), dict[str, Path]()
    of_tasks: dict[str, set[str]] = {}  # by model, the tasks whose files of samples were read
    for path in _files(folder):
        where = path.relative_to(folder).as_posix()
        try:
            with reading(where, DataError, remedy="skipped"):
                found = [*_read(path, notes)]
        except DataError as error:
            notes.problems.append(Problem("damaged", str(error).replace(str(path), where)))
            continue
        parent = path.parent.relative_to(folder).as_posix()
        model = names.get(path.parent) or (folder.name if parent == "." else parent)
        model = model.replace("__", "/")  # both tools write owner__name
        if _SAMPLES.fullmatch(path.name) and places.get(model, path.parent) == path.parent:
            # Files of a task are in order of time, and the latest counts, as in the harness. It may
            # have fewer metrics and filters.
            again = of_tasks.get(model, set()) & {one.data for one in found}
            if again:
                cells = {k: of for k, of in cells.items() if k[0] != model or k[1] not in again}
            of_tasks.setdefault(model, set()).update(one.data for one in found)
        for one in found:
            key, other = (model, one.data, one.dataset, one.metric), ""
            if places.setdefault(model, path.parent) != path.parent:
                other = f"{places[model].relative_to(folder).as_posix()} is model {model}"
            elif (known := cells.get(key)) is None:
                cells[key] = one
            elif one.data != _BENCHMARK or known.scores.keys() & one.scores.keys():
                other = f"another file has {', '.join(one.scores) if known.hashes else one.dataset}"
            else:
                joined = replace(known, hashes=known.hashes | one.hashes)
                cells[key] = replace(joined, scores=known.scores | one.scores)
            if other:
                notes.problems.append(Problem("damaged", f"{where}: {other}, too; skipped"))
                break
    return cells


def _differing(cells: Cells, problems: list[Problem]) -> dict[tuple[str, str], Names]:
    """Return what identifies the examples that differ between models under one name."""
    # Where all models have the same examples under other names, their hashes become the names.
    hashes: dict[str, dict[str, Names]] = defaultdict(lambda: defaultdict(dict))
    for (model, data, _, _), values in cells.items():
        hashes[data][model] |= values.hashes
    differing: dict[tuple[str, str], Names] = defaultdict(dict)
    for data, by_model in hashes.items():
        of_names: dict[str, set[str]] = defaultdict(set)
        for names in by_model.values():
            for key, of in names.items():
                of_names[key].add(of)
        mixed = {key for key, found in of_names.items() if len(found) > 1}
        alike = {frozenset(names.values()) for names in by_model.values()}
        are_unique = all(len({*names.values()}) == len(names) for names in by_model.values())
        if mixed and len(alike) == 1 and are_unique and data != _BENCHMARK:
            for key, values in cells.items():
                if key[1] == data:
                    scores = {values.hashes[name]: of for name, of in values.scores.items()}
                    cells[key] = replace(values, scores=scores)
            continue
        for model, names in by_model.items():
            differing[model, data] = {key: of for key, of in names.items() if key in mixed}
        if mixed:
            which = f"{len(mixed):,} of {count(len(of_names), 'example')}"
            text = f"{which} differ between models, by their doc_hash"
            if data == _BENCHMARK:
                which = f"{len(mixed):,} of {count(len(of_names), 'task')}"
                text = f"{which} differ between models in their data: revision, splits or languages"
            problems.append(Problem("mixed", f"{data}: {text}"))
    return differing


def _files(folder: Path) -> Iterator[Path]:
    def stop(error: OSError) -> None:
        raise error  # `os.walk` would skip the folder

    for place, folders, names in os.walk(folder, onerror=stop):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


def _model_names(folder: Path) -> dict[Path, str]:
    """Return the models of mteb's folders, with the revision if a model has several."""
    by_model: dict[str, list[Path]] = defaultdict(list)
    for path in _files(folder):
        if path.name == _META:
            place = path.parent.relative_to(folder).parts
            name = place[-2] if len(place) > 1 else folder.name
            by_model[name].append(path.parent)
    return {
        place: name if len(places) == 1 else f"{name} {place.name[:12]}"
        for name, places in by_model.items()
        for place in places
    }


def _read(path: Path, notes: _Notes) -> Iterable[Values]:
    """Read a file; nothing if it has no results."""
    if match := _SAMPLES.fullmatch(path.name):
        return _harness(path, match["task"], notes)
    if path.suffix == ".json" and path.name.startswith(_SUMMARY):
        raw = json_value(path.read_text("utf-8"))
        found = (raw.get("higher_is_better") or {}) if isinstance(raw, dict) else {}
        notes.lower.update(  # a summary's name sorts before those of samples
            (path.parent, task, name)
            for task, metrics in found.items()
            for name, is_higher in metrics.items()
            if is_higher is False
        )
    elif path.suffix == ".json" and path.name != _META:
        return _mteb(path)
    return _table(path, notes) if path.suffix in _TABLES else ()


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return ((row.number, row.value) for row in rows(path, skips_blank=True))


def _harness(path: Path, task: str, notes: _Notes) -> Iterable[Values]:
    """Read the samples of a task of lm-evaluation-harness: a dataset for each metric and filter."""
    found: dict[tuple[str, str], Values] = {}
    unusable: dict[str, str] = {}
    for number, row in _rows(path):
        dataset = task if row["filter"] == "none" else f"{task} {row['filter']}"
        name = str(row["doc_id"])
        for metric in row["metrics"]:
            score = _share(row[metric])
            if (path.parent, task, metric) in notes.lower:
                unusable[metric] = "lower is better, and biphasic takes higher as better"
            elif score is not None:
                one = found.setdefault((dataset, metric), Values(task, dataset, metric))
                if name in one.scores:
                    where = f"{path.name}, line {number}"
                    raise DataError(f"{where}: doc_id {name} of {dataset} occurs twice; skipped")
                one.scores[name] = score
                if "doc_hash" in row:
                    one.hashes[name] = str(row["doc_hash"])
            elif isinstance(row[metric], list | dict | str):
                unusable[metric] = "the score of an example is not a number"
            else:
                unusable[metric] = "the score of an example is not within -1 and 1"
    for metric, reason in unusable.items():
        notes.problems.append(Problem("left out", f"{task} {metric}: {reason}"))
    return [one for one in found.values() if one.metric not in unusable]


def _mteb(path: Path) -> Iterable[Values]:
    """Read a task of mteb: the mean over its splits and languages, as mteb computes it."""
    raw = json_value(path.read_text("utf-8"))
    if not (isinstance(raw, dict) and "task_name" in raw and isinstance(raw.get("scores"), dict)):
        return []  # another file
    parts = [(split, part) for split, of_split in raw["scores"].items() for part in of_split]
    known = [share for _, part in parts if (share := _share(part["main_score"])) is not None]
    if len(known) < len(parts) or not parts:
        raise DataError(f"{path.name}: a main_score is not a number between -1 and 1; skipped")
    read = sorted((split, str(part.get("hf_subset"))) for split, part in parts)
    if twice := repeated(f"{subset} of {split}" for split, subset in read):
        raise DataError(f"{path.name}: subset {twice[0]} occurs twice; skipped")
    name = str(raw["task_name"])
    hashes = {name: f"{raw.get('dataset_revision')} {read}"}
    return [Values(_BENCHMARK, _BENCHMARK, "main_score", {name: fmean(known)}, hashes)]


def _table(path: Path, notes: _Notes) -> Iterable[Values]:
    """Read a table with a score for each example."""
    scores: dict[str, float] = {}
    clusters: Names = {}
    metric = ""
    for number, (_, row) in enumerate(_rows(path), start=1):
        where = f"{path.name}, row {number}"
        if len(named := [name for name in _SCORES if name in row]) > 1:
            raise DataError(f"{where}: both '{named[0]}' and '{named[1]}'; keep one; skipped")
        metric = metric or "".join(named) or _only_number(row)
        if not metric or "id" not in row:
            return []  # another table
        key, score = str(row["id"]), _number(row[metric])
        if score is None:
            raise DataError(f"{where}: {metric} '{row[metric]}' is not a number; skipped")
        if key in scores:
            raise DataError(f"{where}: id '{key}' occurs twice; skipped")
        scores[key] = score
        if (cluster := row.get(CLUSTER)) not in {None, ""}:
            clusters[key] = str(cluster)
        if len(clusters) not in {0, len(scores)}:
            raise DataError(f"{where}: rows with and without a '{CLUSTER}'; skipped")
        known = notes.clusters[path.stem] if key in clusters else {}
        if (other := known.get(key, clusters.get(key))) != clusters.get(key):
            text = f"{CLUSTER} '{cluster}', but '{other}' in another model's file"
            raise DataError(f"{where}: {text}; skipped")
    # Parts of a correlation can be larger than it.
    if scores and _share(mean := fmean(scores.values())) is None:
        text = f"the mean of {metric} is {mean:g}, not within -1 and 1"
        raise DataError(f"{path.name}: {text}; skipped")
    if clusters:
        notes.clusters[path.stem].update(clusters)
    return [Values(path.stem, path.stem, metric, scores)] if scores else []


def _only_number(row: Mapping[str, Any]) -> str:
    """Return the name of the only number besides the id, such as `ndcg_at_10`; empty if none."""
    [name, *more] = [key for key in row if key not in {"id", CLUSTER}] or [""]
    return "" if more or _number(row.get(name)) is None else name


def _share(value: Any) -> float | None:
    """Return a score as a share; None if it is none."""
    number = _number(value)
    return number if number is not None and -1 <= number <= 1 else None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower(), value)
    if isinstance(value, list | dict | None):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
