"""The result of an evaluation, and its text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from biphasic.amounts import count, points, rate
from biphasic.analysis.estimate import (
    Estimate,
    best_rates,
    chosen_ends,
    grid,
    interval_quantile,
)
from biphasic.analysis.scores.examples import ExampleScores
from biphasic.analysis.scores.source import EXAMPLES, read_run
from biphasic.analysis.statistics.crossed import cell_influences
from biphasic.analysis.statistics.doubts import baseline_sentences, doubt
from biphasic.analysis.text import points_cell, truncations
from biphasic.analysis.words import coverage_sentence
from biphasic.errors import DataError, visible
from biphasic.records import Convention, ResultRecord
from biphasic.shown import Shown, table_lines
from biphasic.store import result_folder
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import TaskInfo

# Headings of a table by type, where they are not the metric's name.
_TYPE_COLUMNS = {"f1": "F1", "support": "entities"}


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """The result of evaluating an encoder on one task.

    Attributes:
        task: Description of the task; `overlaps` counts test examples that are also in training
            data.
        metric: Main metric of the task.
        convention: How the interval was computed.
        estimate: Mean of the selected runs' test scores with its interval, in percent points; None
            if all diverged.
        selected: The selected run of each seed, in order of seeds. Metrics of records are shares,
            not percent.
        results: All fine-tunings of the grid; one run for a zero-shot task.
        folder: Folder of the results: `FOLDER/ID/result.json` and `scores.parquet`.
        other_reading: How an embedding model was trained, if the task read it otherwise.
        baselines: Mean test scores of floors and references by name, in percentage points.
    """

    task: TaskInfo
    metric: str
    convention: Convention
    estimate: Estimate | None
    selected: tuple[ResultRecord, ...]
    results: tuple[ResultRecord, ...]
    folder: Path
    other_reading: str = ""
    baselines: Mapping[str, float] = field(default_factory=dict)

    @property
    def notes(self) -> Iterator[str]:
        """What went wrong: seeds, or all runs, that diverged."""
        if self.estimate is None:
            yield f"{self.task.name}: every run diverged; lower the learning rate"
            return
        lost = {r.seed for r in self.results} - {r.seed for r in self.selected}
        if lost:
            yield f"  excluded {count(len(lost), 'seed')}: every rate diverged"

    def sentences(self) -> Iterator[str]:
        """Return the score and its caveats; nothing without a score."""
        if self.estimate is None:
            return
        facts = KINDS[self.task.kind].facts
        metric = facts.metric(self.metric)
        yield f"{self.task.name} {metric.title}: {points_cell(self.estimate)}"
        how, half_width = self._chosen_rates(), self.estimate.half_width or 0.0
        if not how:
            how, half_width = self._over_examples(self.estimate)
        yield f"  {how}"
        if self.other_reading:
            yield f"  {self.other_reading}"
        if reason := doubt(self.estimate, metric):
            yield f"  no result: {reason}"
        if self.convention != "standard" and self.estimate.half_width is not None:
            yield f"  {coverage_sentence(self.convention, self.estimate.num_seeds)}"
        tests = [result.test or {} for result in self.selected]
        # Both are 0 where all predictions are equal, apart from rounding.
        flat = sum(test.get("spearman") == 0 == test.get("pearson") for test in tests)
        if flat:
            yield (
                f"  collapsed: {flat} of {count(len(tests), 'run')} predict one value for all "
                "examples, apart from rounding"
            )
        for name in tests[0]:
            if name != self.metric:
                mean = sum(test[name] for test in tests) / len(tests)
                yield f"  {facts.metric(name).title}: {points(mean)}"
        mean = self.estimate.mean
        for sentence in baseline_sentences(self.baselines, mean, half_width=half_width):
            yield f"  {sentence}"
        for pair, number in self.task.overlaps.items():
            earlier, later = pair.split("/")
            yield f"  also in {earlier}: {count(number, 'example')} of {later}"
        if cut := truncations(self.selected[0].num_truncated):
            yield f"  cut by the length limit: {cut}"

    def lines(self) -> Iterator[str]:
        """Return the score, its caveats, and the scores by type."""
        yield from self.sentences()
        yield from self.notes
        if (by_type := self.type_table()) is not None:
            yield from table_lines(by_type)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each fine-tuning; scores are in percentage points."""
        selected = {run.id for run in self.selected}
        return [
            {
                "task": self.task.name,
                "seed": run.seed,
                "learning_rate": run.learning_rate,
                "status": run.status,
                "validation": _points(run.validation, self.metric),
                "test": _points(run.test, self.metric),
                "is_selected": run.id in selected,
            }
            for run in self.results
        ]

    def _chosen_rates(self) -> str:
        """Describe the chosen rates and their place among those tried; empty if nothing trains."""
        if not KINDS[self.task.kind].facts.is_trained:
            return ""
        if self.selected[0].protocol.get("train") == "head":
            chosen = ", ".join(map(_chosen_by_probe, self.selected))
            return f"linear model on the states of the frozen encoder (train=head): {chosen}"
        chosen = Counter(result.learning_rate for result in self.selected)
        tried = sorted({result.learning_rate for result in self.results})
        seeds = count(len(self.selected), "seed")
        if len(tried) == 1:
            return f"rate: {rate(tried[0])}, the only one tried, with {seeds}"
        by_rate = [f"{rate(value)} for {n} of {seeds}" for value, n in chosen.most_common()]
        if len(by_rate) == 1:
            best = f"best rate: {rate(next(iter(chosen)))} with {seeds}"
        else:
            best = f"best rates: {', '.join(by_rate)}"
        runs = grid(self.results, metric=self.metric)
        equal, at_end = [*best_rates(runs).values()], chosen_ends(runs, tried)
        if all(len(rates) == len(tried) for rates in equal):
            return f"all {len(tried)} rates tried have the same validation score; {best}"
        ends = ((tried[0], "lowest", "lower"), (tried[-1], "highest", "higher"))
        edges = [
            f"{rate(edge)} is the {name} of {len(tried)} tried; a {beyond} one may be better, "
            "so the score is provisional (--extend, --learning-rate)"
            for edge, name, beyond in ends
            if edge in at_end
        ]
        if ties := sum(len(rates) > 1 for rates in equal):
            edges.append(f"for {ties} of {seeds}, other rates have the same validation score")
        return "; ".join((best, *(edges or [f"none is at the edge of the {len(tried)} tried"])))

    def _over_examples(self, estimate: Estimate) -> tuple[str, float]:
        """Return the interval of the only run over test examples, or why there is none, as text.

        With half of its width; 0 without one.
        """
        [run], unit = self.selected, KINDS[self.task.kind].facts.unit
        try:
            path = result_folder(self.folder.parent, run.id) / EXAMPLES
            ids, clusters, scores = read_run(path, self.metric, run, self.task.name)
            examples = ExampleScores(ids, {run.seed: scores}, clusters)
            moves = cell_influences(examples, self.task.name).by_seed[run.seed]
        except DataError as error:
            return f"no interval over {unit}: {error}", 0.0
        num = len(moves)
        width = interval_quantile(num, convention=self.convention) * math.sqrt(
            math.fsum(moves**2) / (num * (num - 1))
        )
        low, high = estimate.mean - width, estimate.mean + width
        groups = f" in {num:,} clusters" if num < len(ids) else ""
        text = f"95 % interval over {len(ids):,} {unit}{groups}: {low:.2f} to {high:.2f}"
        return text, width

    def type_table(self) -> Table | None:
        """Return a table of mean scores by type of entity or paradigm over the selected runs."""
        parts = [result.by_type.get("test", {}) for result in self.selected]
        # Runs may predict a type that the test split lacks.
        kinds = sorted({kind for part in parts for kind in part})
        if not kinds:
            return None
        names = next(iter(next(filter(None, parts)).values()))
        table = Table(title="By type, on test", title_justify="left", box=None)
        table.add_column("type")
        for name in names:
            table.add_column(_TYPE_COLUMNS.get(name, name), justify="right")
        for kind in kinds:
            rows = [part.get(kind, dict.fromkeys(names, 0)) for part in parts]
            means = {name: sum(row[name] for row in rows) / len(rows) for name in names}
            texts = [
                f"{mean:.0f}" if isinstance(names[name], int) else points(mean)
                for name, mean in means.items()
            ]
            table.add_row(Text(visible(kind)), *texts)
        return table


def _chosen_by_probe(result: ResultRecord) -> str:
    """Describe what validation chose for a probe."""
    probe = result.probe
    if probe is None:  # computed before it was recorded
        return "unknown strength"
    layer = "" if probe.layer is None else f", layer {probe.layer}"
    return f"C = {probe.strength:g}{layer}"


def _points(metrics: Mapping[str, float] | None, metric: str) -> float | None:
    return None if not metrics or metric not in metrics else 100 * metrics[metric]
