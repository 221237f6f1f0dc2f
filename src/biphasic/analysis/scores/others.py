"""Results of other tools with a score for each example, in one folder.

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

import csv
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from biphasic.amounts import count
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.records import Problem
from biphasic.analysis.scores.examples import ExampleScores, mean_examples
from biphasic.analysis.scores.model_names import model_from_name
from biphasic.analysis.scores.reference import DatasetChoice
from biphasic.analysis.scores.table import PERCENT, DatasetInfo, Score, Scores, with_averages
from biphasic.errors import DataError, reading
from biphasic.facts import KindFacts, metric_facts
from biphasic.records import Convention

_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d\d-\d\dT[\d.:-]+)\.jsonl")
_META, _SUMMARY = "model_meta.json", "results_"
_BENCHMARK = "MTEB"
_TABLES = (".jsonl", ".csv")
_SCORES = ("score", "correct")
_WORDS = {"true": 1.0, "false": 0.0}
Values = dict[str, float]  # scores of examples, by their names
CLUSTER = "cluster"  # column of tables
# By the data that the examples are of, which datasets of several filters share; dataset; metric.
Found = Mapping[tuple[str, str, str], Values]
Cells = dict[tuple[str, str, str, str], Values]  # by model, and as in `Found`
# By model and data, what identifies the data of those examples that differ between models.
Differing = dict[tuple[str, str], dict[str, str]]


@dataclass(frozen=True)
class _Notes:
    """What files say about results beside their scores."""

    problems: list[Problem]
    # What identifies the data of an example: by task, name of the example and folder of a model.
    data: dict[str, dict[str, dict[Path, str]]]
    # Metrics that are better if lower: folder of a model, task and metric.
    lower: set[tuple[Path, str, str]]
    clusters: dict[str, dict[str, str]]  # cluster of each example, by data and its name


@dataclass(frozen=True)
class OtherResults:
    """Scores of examples below a folder, and problems of the others."""

    folder: Path
    datasets: Mapping[str, DatasetInfo]  # by name
    # By model and dataset; of a dataset, all models have the same examples.
    values: Mapping[tuple[str, str], Values]
    clusters: Mapping[str, Mapping[str, str]]  # of examples that have one, by their data
    differing: Differing
    problems: tuple[Problem, ...]

    def scores(self, convention: Convention = "standard") -> Scores:
        """Return the scores, with the average over all datasets of a metric."""

        def read(model: str, dataset: str) -> ExampleScores:
            if (model, dataset) not in self.values:
                raise DataError(f"{model} has no results on {dataset}")
            values, data = self.values[model, dataset], self.datasets[dataset].data
            of_data = self.clusters.get(data, {})
            clusters = tuple(of_data[key] for key in values) if of_data else ()
            # Models that read other data under one name have no example in common there.
            own = self.differing.get((model, data), {})
            ids = tuple(f"{key} {own[key]}" if key in own else key for key in values)
            return ExampleScores(ids, {0: mean_examples([*values.values()])}, clusters)

        means = {cell: PERCENT * fmean(values.values()) for cell, values in self.values.items()}
        cells = {cell: Score(Estimate(mean, None, 1), {0: mean}) for cell, mean in means.items()}
        models = dict.fromkeys(model for model, _ in self.values)
        return with_averages(
            Scores(
                source=self.folder.name,
                convention=convention,
                models=tuple(model_from_name(name) for name in models),
                datasets=tuple(self.datasets.values()),
                cells=cells,
                examples=read,
                is_by_example=True,
            )
        )


def read_others(folder: Path, choice: DatasetChoice) -> OtherResults | None:
    """Read the results of other tools below a folder; None if there are none."""
    problems: list[Problem] = []
    clusters: dict[str, dict[str, str]] = defaultdict(dict)
    differing: Differing = defaultdict(dict)
    cells = _read_all(folder, problems, clusters, differing)
    if not cells:
        if problems:
            raise DataError(f"{folder}: {problems[0].text}")
        return None
    by_name = _named(cells)
    left_out = choice.left_out(by_name)
    datasets, values = {}, {}
    for name, (data, metric, by_model) in by_name.items():
        if name in left_out:
            continue
        if common := _common(name, by_model, problems):
            facts = metric_facts(metric)
            about = KindFacts(facts.title, (facts,), is_trained=False)
            datasets[name] = DatasetInfo(name, metric.upper(), metric, data=data, about=about)
            for model, of_model in by_model.items():
                values[model, name] = {key: of_model[key] for key in common}
    if not datasets:
        raise DataError(f"{folder}: {problems[-1].text}")
    return OtherResults(folder, datasets, values, clusters, differing, tuple(problems))


def _named(cells: Cells) -> dict[str, tuple[str, str, dict[str, Values]]]:
    """Return data, metric and models of each dataset; its name has the metric if it has several."""
    metrics: dict[str, set[str]] = defaultdict(set)
    for _, _, dataset, metric in cells:
        metrics[dataset].add(metric)
    found: dict[str, tuple[str, str, dict[str, Values]]] = {}
    for (model, data, dataset, metric), values in sorted(cells.items()):
        name = dataset if len(metrics[dataset]) == 1 else f"{dataset} {metric}"
        found.setdefault(name, (data, metric, {}))[2][model] = values
    return found


def _common(dataset: str, by_model: Mapping[str, Values], problems: list[Problem]) -> list[str]:
    """Return the examples that all models have, in order; report what is left out."""
    every = {key for values in by_model.values() for key in values}
    shared = every.intersection(*by_model.values())
    for model, values in by_model.items():
        if missing := len(every) - len(values):
            text = f"no score for {missing:,} of {count(len(every), 'example')}"
            rest = f"all models are compared on the {len(shared):,} that they share"
            problems.append(Problem("missing", f"{model} on {dataset}: {text}; {rest}"))
    return sorted(shared)


def _read_all(
    folder: Path,
    problems: list[Problem],
    clusters: dict[str, dict[str, str]],
    differing: Differing,
) -> Cells:
    """Read every file that has results."""
    cells: Cells = {}
    notes = _Notes(problems, defaultdict(lambda: defaultdict(dict)), set(), clusters)
    names = _model_names(folder)
    models: dict[Path, str] = {}
    for path in _files(folder):
        where = path.relative_to(folder).as_posix()
        try:
            with reading(where, DataError, remedy="skipped"):
                found = _read(path, notes)
        except DataError as error:
            problems.append(Problem("damaged", str(error)))
            continue
        parent = path.parent.relative_to(folder).as_posix()
        model = names.get(path.parent) or (folder.name if parent == "." else parent)
        model = model.replace("__", "/")  # both tools write owner__name
        models[path.parent] = model
        for place, values in found.items():
            # Files of a task are in order of time, and the latest counts, as in the harness itself.
            if _BENCHMARK in place:
                cells.setdefault((model, *place), {}).update(values)
            else:
                cells[model, *place] = values
    for task, examples in notes.data.items():
        mixed = {key: of for key, of in examples.items() if len({*of.values()}) > 1}
        for key, of_models in mixed.items():
            for place, data in of_models.items():
                differing[models[place], task][key] = data
        if different := len(mixed):
            which = f"{different:,} of {count(len(examples), 'example')}"
            text = f"{which} differ between models, by their doc_hash"
            if task == _BENCHMARK:
                which = f"{different:,} of {count(len(examples), 'task')}"
                text = f"{which} differ between models in their data: revision, splits or languages"
            problems.append(Problem("mixed", f"{task}: {text}"))
    return cells


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


def _read(path: Path, notes: _Notes) -> Found:
    """Read a file; nothing if it has no results."""
    if match := _SAMPLES.fullmatch(path.name):
        return _samples(path, match["task"], notes)
    if path.suffix == ".json" and path.name.startswith(_SUMMARY):
        _summary(path, notes)
    elif path.suffix == ".json" and path.name != _META:
        return _task(path, notes)
    return _table(path, notes) if path.suffix in _TABLES else {}


def _summary(path: Path, notes: _Notes) -> None:
    """Read which metrics are better if lower; a summary's name sorts before those of samples."""
    raw = json.loads(path.read_text("utf-8"))
    for task, metrics in (
        (raw.get("higher_is_better") or {}) if isinstance(raw, dict) else {}
    ).items():
        notes.lower.update(
            (path.parent, task, name) for name, is_higher in metrics.items() if is_higher is False
        )


def _samples(path: Path, task: str, notes: _Notes) -> Found:
    """Read the samples of a task of lm-evaluation-harness: a dataset for each metric and filter."""
    found: dict[tuple[str, str, str], Values] = defaultdict(dict)
    unusable: dict[str, str] = {}
    for row in _lines(path):
        name = task if row["filter"] == "none" else f"{task} {row['filter']}"
        if "doc_hash" in row:
            notes.data[task][str(row["doc_id"])][path.parent] = str(row["doc_hash"])
        for metric in row["metrics"]:
            score = _share(row[metric])
            if (path.parent, task, metric) in notes.lower:
                unusable[metric] = "lower is better, and biphasic takes higher as better"
            elif score is not None:
                found[task, name, metric][str(row["doc_id"])] = score
            elif isinstance(row[metric], list | dict | str):
                unusable[metric] = "the score of an example is not a number"
            else:
                unusable[metric] = "the score of an example is not within -1 and 1"
    for metric, reason in unusable.items():
        found = {key: values for key, values in found.items() if key[2] != metric}
        notes.problems.append(Problem("left out", f"{task} {metric}: {reason}"))
    return found


def _task(path: Path, notes: _Notes) -> Found:
    """Read a task of mteb: the mean over its splits and languages, as mteb computes it."""
    raw = json.loads(path.read_text("utf-8"))
    if not (isinstance(raw, dict) and "task_name" in raw and isinstance(raw.get("scores"), dict)):
        return {}  # another file
    parts = [(split, part) for split, of_split in raw["scores"].items() for part in of_split]
    shares = [_share(part["main_score"]) for _, part in parts]
    known = [share for share in shares if share is not None]
    if len(known) < len(parts) or not parts:
        raise DataError(f"{path.name}: a main_score is not a number between -1 and 1; skipped")
    read = sorted((split, str(part.get("hf_subset"))) for split, part in parts)
    name = str(raw["task_name"])
    notes.data[_BENCHMARK][name][path.parent] = f"{raw.get('dataset_revision')} {read}"
    return {(_BENCHMARK, _BENCHMARK, "main_score"): {name: fmean(known)}}


def _table(path: Path, notes: _Notes) -> Found:
    """Read a table with a score for each example."""
    values: Values = {}
    clusters: dict[str, str] = {}
    metric = ""
    for number, row in enumerate(_rows(path), start=1):
        metric = metric or next((name for name in _SCORES if name in row), "") or _only_number(row)
        if not metric or "id" not in row:
            return {}  # another table
        key, score = str(row["id"]), _number(row[metric])
        if score is None:
            text = f"{path.name}, row {number}: {metric} '{row[metric]}' is not a number"
            raise DataError(f"{text}; skipped")
        if key in values:
            raise DataError(f"{path.name}, row {number}: id '{key}' occurs twice; skipped")
        values[key] = score
        if (cluster := row.get(CLUSTER)) not in {None, ""}:
            clusters[key] = str(cluster)
        if len(clusters) not in {0, len(values)}:
            raise DataError(
                f"{path.name}, row {number}: rows with and without a '{CLUSTER}'; skipped"
            )
        known = notes.clusters[path.stem] if key in clusters else {}
        if (other := known.get(key, clusters.get(key))) != clusters.get(key):
            raise DataError(
                f"{path.name}, row {number}: {CLUSTER} '{cluster}', but '{other}' in another "
                "model's file; skipped"
            )
    # Parts of a correlation can be larger than it.
    if values and _share(mean := fmean(values.values())) is None:
        raise DataError(
            f"{path.name}: the mean of {metric} is {mean:g}, not within -1 and 1; skipped"
        )
    if clusters:
        notes.clusters[path.stem].update(clusters)
    return {(path.stem, path.stem, metric): values} if values else {}


def _only_number(row: Mapping[str, Any]) -> str:
    """Return the name of the only number besides the id, such as `ndcg_at_10`; empty if none."""
    [name, *more] = [key for key in row if key not in {"id", CLUSTER}] or [""]
    return "" if more or _number(row.get(name)) is None else name


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".jsonl":
        yield from _lines(path)
        return
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file, strict=True)


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise DataError(f"{path.name}, line {number}: not a JSON object; skipped")
                yield row


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
