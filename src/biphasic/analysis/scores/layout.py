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

The factors of a model are parsed from its name, `610m-clm-10k-mlm40-42k`. Studies name arms by this
rule (docs/studies.md), like the reference study its public models. A name has the start of
training, each objective and its last step, `dec42k` after the decay of a schedule, and at the end
the step of an intermediate state.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

from biphasic.amounts import rate as rate_text
from biphasic.analysis.estimate import Estimate, GridScore, best_per_seed
from biphasic.analysis.records import Problem
from biphasic.analysis.scores.examples import ExampleScores, RunExamples, check_value, mean_examples
from biphasic.analysis.scores.reference import EVERY, DatasetChoice, paper_datasets
from biphasic.analysis.scores.table import (
    PERCENT,
    DatasetInfo,
    ModelInfo,
    Score,
    Scores,
    score_of_grid,
    with_averages,
)
from biphasic.analysis.text import listing
from biphasic.errors import DataError, is_system_fault, reading
from biphasic.files import is_file
from biphasic.records import Convention

RESULTS = "results.json"
RUN_FOLDER = "MODEL/TASK/DATASET/[TRAINSET_]lrX_sdS"
_RUN = re.compile(
    r"(?:(?P<trained_on>.+)_)?lr(?P<rate>\d*\.?\d+(?:[eE][+-]?\d\d?)?)_sd(?P<seed>\d+)"
)
_METRIC = "score"
Cell = tuple[str, str]  # names of model and dataset
# Task, dataset and training set, empty if it is the dataset itself; equal for comparable runs.
Column = tuple[str, str, str]


# Reads the test examples of the selected runs of a model on a dataset.
Reader = Callable[[str, str, Sequence[GridScore[Any]]], ExampleScores]


@dataclass(frozen=True)
class Layout:
    """All runs with scores below a folder, and problems of the others."""

    folder: Path
    datasets: Mapping[str, DatasetInfo]
    runs: Mapping[Cell, Sequence[GridScore[Any]]]
    problems: tuple[Problem, ...]
    read: Reader
    # Of `evaluate`, rates and seeds that each cell tried; None if models share a grid.
    tried: Mapping[Cell, Collection[tuple[float, int]]] | None = None
    is_by_example: bool = False  # whether a run is only scores of examples

    def scores(self, convention: Convention = "standard") -> Scores:
        """Return the scores, with the average over each task with several datasets."""
        models = dict.fromkeys(model for model, _ in self.runs)
        grids = _expected(self.runs)

        def examples(model: str, dataset: str) -> ExampleScores:
            if runs := best_per_seed(self.runs.get((model, dataset), ())):
                return self.read(model, dataset, runs)
            raise DataError(f"{model} on {dataset}: no run has a score")

        def score(cell: Cell, runs: Sequence[GridScore[Any]]) -> Score:
            if self.is_by_example:
                mean = PERCENT * runs[0].test
                return Score(Estimate(mean, None, 1), {0: mean})
            ran = {(run.rate, run.seed) for run in runs}
            if self.tried is None:
                is_complete, rates = ran == grids[cell[1]], set[float]()
            else:
                rates, seeds = ({*of} for of in zip(*self.tried[cell], strict=True))
                is_tried = {*product(rates, seeds)} == {*self.tried[cell]}
                is_complete = is_tried and {run.seed for run in runs} == seeds
            return score_of_grid(runs, convention=convention, is_complete=is_complete, tried=rates)

        scores = Scores(
            source=self.folder.name,
            convention=convention,
            models=tuple(model_from_name(name) for name in models),
            datasets=tuple(self.datasets.values()),
            cells={cell: score(cell, runs) for cell, runs in self.runs.items()},
            examples=examples,
            is_by_example=self.is_by_example,
        )
        return with_averages(scores)


def read_layout(folder: Path, choice: DatasetChoice = EVERY) -> Layout:
    """Read every run of the chosen datasets below a folder."""
    # The folder holds models, or `results/` with them.
    root = folder / "results" if (folder / "results").is_dir() else folder
    if not root.is_dir():
        raise DataError(f"{folder}: no such folder")
    problems: list[Problem] = []
    places = [*_places(root, problems)]
    columns = _choose(_columns({column for _, _, column, _, _ in places}), choice, problems)
    found: dict[Cell, dict[tuple[float, int], list[GridScore[Path]]]] = defaultdict(dict)
    for path, model, column, rate, seed in places:
        if column in columns and (scores := _read_run(path, root, problems)):
            run = GridScore(rate, seed, *scores, path)
            found[model, columns[column].name].setdefault((rate, seed), []).append(run)
    runs = {cell: tuple(_unique(cell, by_place, problems)) for cell, by_place in found.items()}
    runs = {cell: kept for cell, kept in sorted(runs.items()) if kept}
    if not runs:
        problem = f"; {problems[0].text}" if problems else ""
        raise DataError(
            f"{folder}: no results; give the folder of a study, the root of 'biphasic evaluate', "
            f"or one with {RUN_FOLDER}/{RESULTS}, results of lm-evaluation-harness or mteb, or "
            f"tables with 'id' and 'score' (docs/analyze.md){problem}"
        )
    used = {dataset for _, dataset in runs}
    kept = {about.name: about for about in columns.values() if about.name in used}
    return Layout(root, kept, runs, (*problems, *_missing(runs)), _read_seeds)


def _places(root: Path, problems: list[Problem]) -> Iterator[tuple[Path, str, Column, float, int]]:
    """Yield results file, model, column, rate and seed of each run, in order of their folders."""

    def stop(error: OSError) -> None:
        raise error  # `rglob` would skip the folder

    walked = [(Path(place), names) for place, _, names in os.walk(root, onerror=stop)]
    with_results = {place for place, names in walked if RESULTS in names}
    above = {parent for path in with_results for parent in path.parents}
    without = {place for place, _ in walked if _RUN.fullmatch(place.name)} - above - {root}
    for folder in sorted(with_results | without):
        parts, match = folder.relative_to(root).parts, _RUN.fullmatch(folder.name)
        if match is None or len(parts) < 4:
            where = folder.relative_to(root).as_posix()
            problems.append(Problem("damaged", f"{where}: not named {RUN_FOLDER}; skipped"))
            continue
        *model, task, dataset, _ = parts
        column = task, dataset, match["trained_on"] or ""
        yield folder / RESULTS, "/".join(model), column, float(match["rate"]), int(match["seed"])


def _columns(columns: Collection[Column]) -> dict[Column, DatasetInfo]:
    """Return the display name of each dataset and training set, in order."""
    # A name includes the task if two tasks have a dataset of that name. If models were trained on
    # different sets for a task's dataset, each training set forms its own task, so averages and
    # comparisons do not mix them.
    keys = sorted(columns)
    tasks: dict[str, set[str]] = defaultdict(set)
    sets: dict[tuple[str, str], set[str]] = defaultdict(set)
    for task, dataset, trained_on in keys:
        tasks[dataset].add(task)
        sets[task, dataset].add(trained_on)
    mixed = {task for (task, _), trained_on in sets.items() if len(trained_on) > 1}
    infos = {}
    for task, dataset, trained_on in keys:
        name = dataset if len(tasks[dataset]) == 1 else f"{task}/{dataset}"
        suffix = f" ({trained_on})" if task in mixed and trained_on else ""
        infos[task, dataset, trained_on] = DatasetInfo(
            f"{name}{suffix}", f"{task.upper()}{suffix}", _METRIC, trained_on=trained_on
        )
    return dict(sorted(infos.items(), key=lambda item: item[1].task))


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


def _read_run(path: Path, root: Path, problems: list[Problem]) -> tuple[float, float] | None:
    """Return the scores on validation and test; None, with a problem, if they cannot be used."""
    where = path.relative_to(root).as_posix()
    if not is_file(path):
        problems.append(Problem("missing", f"{where}: missing; the run has not finished"))
        return None
    try:
        with reading(where, DataError, remedy="skipped"):
            raw = json.loads(path.read_text("utf-8"))
            return _share(raw, "validation"), _share(raw, "test")
    except DataError as error:
        problems.append(Problem("damaged", str(error)))
        return None


def _share(raw: Any, split: str) -> float:
    """Return the score of a split."""
    part = raw.get(split) if isinstance(raw, dict) else None
    score = part.get("score") if isinstance(part, dict) else None
    if not isinstance(score, int | float) or isinstance(score, bool):
        raise ValueError(f"no number as '{split}.score'")
    if not -1 <= score <= 1:  # also refuses NaN
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


def _read_seeds(model: str, dataset: str, runs: Sequence[GridScore[Path]]) -> ExampleScores:
    """Return the examples of the selected runs, whose order identifies them."""
    by_seed = {run.seed: _read_examples(run) for run in runs}
    sizes = {examples.terms.shape[1] for examples in by_seed.values()}
    if len(sizes) > 1:
        raise DataError(f"{model} on {dataset}: seeds have different numbers of test examples")
    return ExampleScores(tuple(map(str, range(sizes.pop()))), by_seed)


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


_SIZE = re.compile(r"\d+(\.\d+)?[mb]", re.IGNORECASE)
_PHASE = re.compile(r"(?P<objective>clm|mlm)(?P<rate>\d+(?:\.\d+)?)?-(?P<dec>dec)?(?P<end>\d+k?)")
_STEP = re.compile(r"\d+")


@dataclass(frozen=True)
class _Phase:
    objective: str
    rate: float | None
    start: int
    end: int
    decays: bool


def model_from_name(name: str) -> ModelInfo:
    """Return a model with the factors in its name; none if the name follows another rule."""
    # Text before the last `/` of a name is an owner.
    text = name.rsplit("/", 1)[-1].lower()
    size, _, rest = text.partition("-")
    phases, on_the_way = _phases(rest) if _SIZE.fullmatch(size) else ([], None)
    if not phases:
        return ModelInfo(name, name)
    total = on_the_way if on_the_way is not None else phases[-1].end
    begun = [phase for phase in phases if phase.start < min(phase.end, total)]
    steps: Counter[str] = Counter()
    for phase in begun:
        steps[phase.objective] += min(phase.end, total) - phase.start
    start, continued = _continuation(phases, total)
    return ModelInfo(
        name=name,
        label=name,
        size=size.upper(),
        parameters=round(float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]),
        objective=_family(begun),
        mask_rate=next((p.rate for p in reversed(begun) if p.objective == "mlm"), None),
        clm_steps=steps["clm"],
        mlm_steps=steps["mlm"],
        total_steps=total,
        start=start,
        continued_steps=continued,
        is_final=on_the_way is None,
    )


def _phases(text: str) -> tuple[list[_Phase], int | None]:
    """Parse a name; return no phases if any part of it does not match."""
    phases: list[_Phase] = []
    while match := _PHASE.match(text):
        rate = float(match["rate"]) / 100 if match["rate"] else None
        is_whole = (match["objective"] == "mlm") == (rate is not None)
        end = int(match["end"].removesuffix("k")) * (1000 if match["end"].endswith("k") else 1)
        start = phases[-1].end if phases else 0
        if not is_whole or (phases and end <= start):
            return [], None
        phases.append(_Phase(match["objective"], rate, start, end, bool(match["dec"])))
        text = text[match.end() :].removeprefix("-")
    if not text:
        return phases, None
    is_step = phases and _STEP.fullmatch(text) and 0 < int(text) <= phases[-1].end
    return (phases, int(text)) if is_step else ([], None)


def _family(phases: list[_Phase]) -> str:
    return "+".join(name for name, _ in groupby(phase.objective.upper() for phase in phases))


def _continuation(phases: list[_Phase], total: int) -> tuple[str | None, int]:
    for index in reversed(range(len(phases) - 1)):
        if phases[index].decays and total > phases[index].end:
            return _family(phases[: index + 1]), total - phases[index].end
    return None, 0
