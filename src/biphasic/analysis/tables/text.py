"""What `analyze` and `compare` return: tables by task, sentences about them, and drawings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from biphasic.analysis.estimate import LEVEL, Estimate, best_per_seed
from biphasic.analysis.scores.table import AT_END, PERCENT, DatasetInfo, Planned, Score, Scores
from biphasic.analysis.statistics.compare import (
    Family,
    ModelComparison,
    families_of,
    planned_tests,
    unscored,
)
from biphasic.analysis.statistics.doubts import doubt_notes
from biphasic.analysis.statistics.variance import variance_split
from biphasic.analysis.text import csv_text, flat, listing, plain, score_text, short
from biphasic.analysis.words import coverage_sentence, selection_sentence, words
from biphasic.config import nearest
from biphasic.errors import ConfigError, DataError, repeated
from biphasic.palette import objective_styles
from biphasic.shown import Shown, inline, table_lines

if TYPE_CHECKING:
    from pandas import DataFrame

_COLUMNS = (
    "kind", "dataset", "first", "second", "difference", "low", "high", "p_value", "p_corrected",
    "num_comparisons", "verdict", "detectable", "variance", "unit", "num_pairs", "num_examples",
    "num_clusters",
)  # fmt: skip
_MOST_NAMED = 6  # models of a group that are named; of larger groups, only the ranks


def score_tables(scores: Scores) -> Iterator[Table]:
    """Yield a table per task: models by datasets, `mean (half-width)` in percentage points."""
    by_task: dict[str, list[DatasetInfo]] = {}
    for dataset in scores.datasets:
        by_task.setdefault(dataset.task, []).append(dataset)
    for task, datasets in by_task.items():
        table = Table(title=Text(plain(task)), title_justify="left")
        table.add_column("Model", overflow="fold")
        for dataset in datasets:
            header = "Average" if dataset.is_average else plain(dataset.name)
            table.add_column(Text(header), justify="right", min_width=13, overflow="fold")
        best = {dataset.name: scores.best(dataset.name) for dataset in datasets}
        for model in scores.models:
            row = [Text(plain(model.label))]
            for dataset in datasets:
                score = scores.get(model.name, dataset.name)
                is_provisional = score.estimate is not None and not score.is_complete
                text = score_text(score.estimate) + (" †" if is_provisional else "")
                text += f" {AT_END}" if score.is_at_end else ""
                row.append(Text(text, style="bold" if model.name in best[dataset.name] else ""))
            table.add_row(*row, end_section=model is scores.models[-1])
        for model in scores.baselines:
            found = [scores.get(model.name, dataset.name).estimate for dataset in datasets]
            if any(found):
                table.add_row(Text(plain(model.label)), *map(score_text, found), style="dim")
        yield table


def notes(scores: Scores) -> list[str]:
    """Explain how to read the tables."""
    cells = scores.cells.values()
    zero_shot = {d.name for d in scores.datasets if d.is_zero_shot and scores.unit == "seed"}
    found = [
        (cell.num_seeds, cell.estimate.half_width)
        for (_, dataset), cell in scores.cells.items()
        if cell.estimate is not None and dataset not in zero_shot
    ]
    seeds = [number for number, half_width in found if half_width is not None]
    coverage = seeds and coverage_sentence(scores.convention, min(seeds), scores.unit)
    known = {"coverage": coverage, "is_lacking": len(seeds) < len(found),
             "has_zero_shot": bool(zero_shot)}  # fmt: skip
    by_set: dict[str, list[str]] = {}
    for dataset in scores.datasets:
        if dataset.trained_on:
            by_set.setdefault(dataset.trained_on, []).append(flat(dataset.name))
    sentences = words().reading(scores, known, by_set).splitlines()
    if scores.is_by_example:
        return sentences
    sentences += doubt_notes(scores)
    if any(c.estimate is not None and not c.is_complete for c in cells):
        sentences.append("†: provisional, as runs are missing, diverged or were omitted.")
    return sentences


def comparison_sentence(
    comparison: ModelComparison, labels: Mapping[str, str] | None = None
) -> str:
    """Describe by how much one model is above another, and how certainly."""
    # `labels` are short display names.
    names = (comparison.first, comparison.second)
    shown = ((labels or {}).get(name) or short(name) for name in names)
    return words().comparison(comparison, *shown)


def compared(
    families: Iterable[Family], *, only_planned: bool = False
) -> Iterator[ModelComparison]:
    """Yield the planned comparisons, and those of each dataset's best model with the others."""
    for family in families:
        others = () if only_planned else family.with_best
        yield from (*family.of_plan, *(one for one in others if not one.is_planned))


def _rows(found: Iterable[ModelComparison], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each comparison; `names` are those of the models in files."""
    for one in found:
        low, high = one.interval or (None, None)
        yield {
            "kind": "planned" if one.is_planned else "exploratory", "dataset": one.dataset,
            "first": names[one.first], "second": names[one.second], "difference": one.mean,
            "low": low, "high": high, "p_value": one.p_value, "p_corrected": one.p_adjusted,
            "num_comparisons": one.family_size, "verdict": one.verdict,
            "detectable": one.detectable, "variance": "pooled" if one.is_pooled else "pair",
            "unit": one.unit, "num_pairs": one.num_pairs, "num_examples": one.num_examples,
            "num_clusters": one.num_clusters,
        }  # fmt: skip


def comparisons_csv(families: Iterable[tuple[Scores, Family]]) -> str:
    """Write the comparisons of a study, each family with the scores of all models, exactly."""
    rows = (_rows(compared([family]), scores.written_names) for scores, family in families)
    return csv_text(_COLUMNS, (row.values() for of_family in rows for row in of_family))


def comparison_lines(scores: Scores, *, only_planned: bool = False) -> Iterator[str]:
    """Yield the difference between each dataset's best and next model, with its certainty."""
    for family in families_of(scores).values():
        dataset, order = family.dataset, family.order
        if len(order) < 2 or (only_planned and not family.of_plan):
            continue
        yield f"{plain(dataset.name)}:"
        if family.is_too_large or only_planned:
            planned = [comparison_sentence(one, scores.short_labels) for one in family.of_plan]
            method = [] if only_planned else [words().method(family)]
            yield from (f"  {text}" for text in (*planned, *method))
            continue
        comparisons = family.with_best
        best, closest = plain(scores.labels[order[0]]), comparisons[0]
        yield from (
            f"  Planned: {comparison_sentence(one, scores.short_labels)}"
            for one in family.of_plan
            if {one.first, one.second} != {closest.first, closest.second}  # follows below
        )
        what = "Best and next, planned" if closest.is_planned else "Exploratory"
        clear = sum(comparison.is_clear for comparison in comparisons)
        absent = [plain(scores.labels[name]) for name in unscored(scores, dataset.name)]
        of_seeds = (
            selection_sentence(scores, dataset.name),
            *map(words().source, variance_split(scores, dataset.name)),
        )
        sentences = (
            f"{what}: {comparison_sentence(closest, scores.short_labels)}",
            words().examples(closest),
            words().detectable(closest),
            f"{best} is clearly above {clear} of {len(comparisons)} other models.",
            absent and f"Without a score: {listing(absent, most=_MOST_NAMED)}.",
            _groups_sentence(scores, family),
            words().method(family),
            *(() if scores.is_by_example else of_seeds),
        )
        yield from (f"  {sentence}" for sentence in sentences if sentence)


def _groups_sentence(scores: Scores, family: Family) -> str:
    """Say which ranks cannot be told apart; empty for two models."""
    num = len(family.order) - 1
    if num < 2:
        return ""
    is_clear = _clear_pairs(scores, family)
    names = [
        ", ".join(plain(scores.labels[name]) for name in family.order[start : end + 1])
        if end - start < _MOST_NAMED
        else f"ranks {start + 1} to {end + 1}"
        for start, end in _alike(is_clear)
    ]
    return words().groups((~np.diagonal(is_clear, 1)).sum(), num, names)


def _clear_pairs(scores: Scores, family: Family) -> NDArray[np.bool_]:
    """Return which models, best first, differ clearly from which later ones."""
    num = len(family.order)
    firsts, seconds = np.triu_indices(num, k=1)
    means = scores.means(family.dataset.name)
    values = np.array([means[name] for name in family.order])
    table = np.zeros((num, num), dtype=np.bool_)
    # NaN, without a test, is not clear.
    table[firsts, seconds] = (family.corrected.p_adjusted <= LEVEL) & (
        values[firsts] != values[seconds]
    )
    places = {name: place for place, name in enumerate(family.order)}
    for (first, second), plan in family.planned.items():
        if first in places and second in places:
            low, high = sorted((places[first], places[second]))
            table[low, high] = plan.is_clear and values[low] != values[high]
    return table


def _alike(is_clear: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield first and last place of the groups without a clear difference, none within another."""
    end = last = 0
    for start in range(len(is_clear)):
        end = max(end, start)
        while end + 1 < len(is_clear) and not is_clear[start : end + 1, end + 1].any():
            end += 1
        if end > max(start, last):
            yield start, end
        last = max(last, end)


def scores_json(scores: Scores, problems: Iterable[str]) -> dict[str, Any]:
    """Return all cells with unrounded numbers, as JSON; those of baselines come last."""
    known = {**scores.cells, **scores.baseline_cells}
    return {
        "format": "biphasic.analysis/1",
        "source": scores.source,
        "convention": scores.convention,
        "notes": notes(scores),
        "problems": [*problems],
        "cells": [
            _cell_json(scores.written_names[model.name], dataset, score)
            for model in (*scores.models, *scores.baselines)
            for dataset in scores.datasets
            if (score := known.get((model.name, dataset.name))) is not None
        ],
    }


def score_rows(scores: Scores) -> list[dict[str, Any]]:
    """Return a row for each cell, without single runs."""
    runs = {"by_seed", "at_one_rate", "one_rate"}
    cells = scores_json(scores, ())["cells"]
    return [{name: value for name, value in cell.items() if name not in runs} for cell in cells]


def _cell_json(model: str, dataset: DatasetInfo, score: Score) -> dict[str, Any]:
    estimate = score.estimate or Estimate(0.0, None, 0)
    return {
        "model": model,
        "task": dataset.task,
        "dataset": dataset.name,
        "trained_on": dataset.trained_on or None,
        "mean": estimate.mean if score.estimate else None,
        "half_width": estimate.half_width,
        "num_seeds": estimate.num_seeds,
        "is_complete": score.is_complete,
        "is_at_end": score.is_at_end,
        "by_seed": {str(seed): value for seed, value in (score.by_seed or {}).items()},
        "one_rate": score.one_rate,
        "at_one_rate": {str(seed): value for seed, value in (score.at_one_rate or {}).items()},
    }


_MOST_MODELS = 40  # of a drawing
_FACTORS = (
    "size", "parameters", "objective", "mask_rate", "clm_steps", "mlm_steps", "total_steps",
    "start", "continued_steps", "is_final", "flops", "labels", "optimizer", "attention", "group",
)  # fmt: skip
_RUN_TYPES = {
    "model": object, "dataset": object, "task": object, "metric": object, "rate": float,
    "seed": "Int64", "split": object, "value": float, "is_selected": bool,
}  # fmt: skip


def run_rows(scores: Scores) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of `_RUN_TYPES` for each run and split, or for a mean without its runs."""
    models = (*scores.models, *scores.baselines)
    for dataset, model in product(scores.datasets, models):
        score = scores.get(model.name, dataset.name)
        if dataset.is_average or score.estimate is None:
            continue
        known = scores.written_names[model.name], dataset.name, dataset.task, dataset.metric
        chosen = {run.seed: run.rate for run in best_per_seed(score.runs)}
        for run in score.runs:
            of_run = (None, None) if dataset.is_zero_shot else (run.rate, run.seed)
            is_chosen = chosen[run.seed] == run.rate
            if not dataset.is_zero_shot:  # whose only run no validation chose
                yield *known, *of_run, "validation", PERCENT * run.validation, is_chosen
            yield *known, *of_run, "test", PERCENT * run.test, is_chosen
        if not score.runs:
            for seed, value in (score.by_seed or {None: score.estimate.mean}).items():
                yield *known, None, None if dataset.is_zero_shot else seed, "test", value, True


def _with_factors(frame: DataFrame, scores: Scores) -> DataFrame:
    from biphasic.analysis.figures.catalog import models_of  # noqa: PLC0415 - loads pandas

    models = models_of(replace(scores, models=(*scores.models, *scores.baselines)))
    factors = models[["model", *_FACTORS]].drop_duplicates("model")
    return frame if frame.empty else frame.merge(factors, on="model", how="left")


@dataclass(frozen=True, repr=False)
class Analysis(Shown):
    """What `analyze` returns: scores of models on datasets, in percentage points.

    Attributes:
        scores: The table of scores, with the runs behind each.
        problems: What was omitted or is missing, one line each.
    """

    scores: Scores
    problems: tuple[str, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each model and dataset: mean, half-width and number of seeds."""
        return score_rows(self.scores)

    @property
    def frame(self) -> DataFrame:
        """A row of pandas for each run and split, with the factors of its model as columns."""
        from pandas import DataFrame  # noqa: PLC0415 - takes half a second

        scores = self.scores.runs or self.scores
        rows = DataFrame(run_rows(scores), columns=[*_RUN_TYPES]).astype(_RUN_TYPES)
        return _with_factors(rows, scores)

    @property
    def means(self) -> DataFrame:
        """A row of pandas for each model and dataset: `table`, and the factors of the model."""
        return _with_factors(super().frame, self.scores)

    def examples(self, dataset: str) -> DataFrame:
        """Return scores of test examples: a row for each, a column for each model and seed."""
        # Of the selected runs. Models may have read other examples, whose scores are then NaN.
        from pandas import Index, Series, concat  # noqa: PLC0415 - takes half a second

        read, scores = self.scores.examples, self.scores
        if read is None:
            raise DataError(f"{scores.source}: no scores of single examples")
        if scores.dataset(dataset).is_average:
            raise DataError(f"{scores.source}: '{dataset}' is an average and has no examples")
        columns = {}
        for model in (*scores.models, *scores.baselines):
            if scores.get(model.name, dataset).estimate:
                found = read(model.name, dataset)
                ids = Index(found.ids, name="example")
                for seed, run in found.by_seed.items():
                    values = Series((PERCENT * run.scores).round(9) + 0.0, ids)  # no -0.0
                    columns[scores.written_names[model.name], seed] = values
        if not columns:
            raise DataError(f"{scores.source}: no model has a score on '{dataset}' yet")
        return concat(columns, axis=1, names=["model", "seed"])

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, as `--json` prints them."""
        return scores_json(self.scores, self.problems)

    def tables(self) -> Iterator[Table]:
        """Return a table for each task, for a terminal."""
        return score_tables(self.scores)

    def explanations(self) -> list[str]:
        """Return how to read the tables, in sentences."""
        return notes(self.scores)

    def lines(self) -> Iterator[str]:
        """Return the tables, and how to read them."""
        for table in self.tables():
            yield from table_lines(table)
        yield from self.explanations()
        yield from map(flat, self.problems)

    def drawing(self) -> str:
        """Return means, intervals and seeds as strips; empty for many models."""
        from biphasic.analysis.figures.chart import Chart  # noqa: PLC0415
        from biphasic.analysis.figures.draw import draw, to_svg  # noqa: PLC0415
        from biphasic.analysis.figures.strips import strips_of  # noqa: PLC0415

        models = self.scores.models
        if len(models) > _MOST_MODELS:
            return ""
        styles = objective_styles(sorted({model.objective for model in models}))
        by_model = {model.name: styles[model.objective] for model in models}
        titles = {dataset.name: dataset.name for dataset in self.scores.datasets}
        chart = strips_of(self.scores, by_model, titles)
        return inline(to_svg(draw(chart), name="scores")) if isinstance(chart, Chart) else ""

    def compare(self, pairs: Iterable[tuple[str, str]] = ()) -> Comparisons:
        """Test whether pairs of models differ, by default the best of each dataset and others."""
        scores, pairs = self.scores, [*pairs]  # `zip` is read once
        names = {written: name for name, written in scores.written_names.items()}
        for pair in pairs:
            if isinstance(pair, str) or len(pair) != 2 or pair[0] == pair[1]:
                raise ConfigError(f"pairs: {pair!r} is no pair of two models, such as ('a', 'b')")
        if again := repeated(" and ".join(sorted(map(str, pair))) for pair in pairs):
            raise ConfigError(f"pairs: {again[0]} are given more than once; compare them once")
        if unknown := [name for pair in pairs for name in pair if name not in names]:
            raise ConfigError(f"pairs: no model '{unknown[0]}'{nearest(unknown[0], [*names])}")
        datasets = tuple(one.name for one in scores.datasets if not one.is_average)
        planned = tuple(Planned((names[a],), (names[b],), datasets) for a, b in pairs)
        scores = replace(scores, planned=planned or scores.planned)
        tested = {key[1:] for key in planned_tests(scores)} if pairs else set()
        for a, b in pairs:
            if (names[a], names[b]) not in tested:
                raise DataError(
                    f"{scores.source}: '{a}' and '{b}' have no {scores.unit}s in common on any "
                    "dataset; leave this pair out, or compare without pairs, which tests means"
                )
        return Comparisons(scores, only_planned=bool(pairs))


@dataclass(frozen=True, repr=False)
class Comparisons(Shown):
    """What `compare` returns: differences of models on each dataset, and whether they are clear.

    Attributes:
        scores: The table of scores that is tested.
        only_planned: Whether all comparisons were named beforehand.
    """

    scores: Scores
    only_planned: bool = False

    def results(self) -> Iterator[ModelComparison]:
        """Yield the planned comparisons, and those of each dataset's best model with the others."""
        families = families_of(self.scores).values()
        return compared(families, only_planned=self.only_planned)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each comparison; `n` counts what it is over: pairs, or examples."""
        return [
            {**row, "p": row["p_value"], "p_adjusted": row["p_corrected"],
             "n": row["num_pairs"] if row["num_pairs"] > 1 else row["num_clusters"]}
            for row in _rows(self.results(), self.scores.written_names)
        ]  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Return the comparisons in sentences."""
        return map(plain, comparison_lines(self.scores, only_planned=self.only_planned))
