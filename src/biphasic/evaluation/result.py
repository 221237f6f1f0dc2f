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

from biphasic.amounts import count, points
from biphasic.analysis.estimate import Estimate, best_rates, chosen_ends, grid, interval_quantile
from biphasic.analysis.scores.examples import ExampleScores
from biphasic.analysis.scores.source import EXAMPLES, read_run
from biphasic.analysis.statistics.crossed import cell_influences
from biphasic.analysis.statistics.doubts import baseline_sentences, doubt
from biphasic.analysis.text import points_cell, truncations
from biphasic.analysis.words import coverage_sentence
from biphasic.errors import DataError, visible
from biphasic.records import Convention, ResultRecord
from biphasic.shown import Shown, table_lines
from biphasic.store import RESULT, Store
from biphasic.study import lines_of
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

    def sentences(self) -> list[str]:
        """Return the score and its caveats; nothing without a score."""
        if (estimate := self.estimate) is None:
            return []
        facts, (first, *_) = KINDS[self.task.kind].facts, self.selected
        metric, runs = facts.metric(self.metric), grid(self.results, metric=self.metric)
        over, half_width = "", estimate.half_width or 0.0
        if not facts.is_trained:
            over, half_width = self._over_examples(estimate)
        is_probe = first.protocol.get("train") == "head"
        tried = sorted({result.learning_rate for result in self.results})
        equal = [*best_rates(runs).values()]
        tests = [result.test or {} for result in self.selected]
        is_usual = self.convention == "standard" or estimate.half_width is None
        caveats = (
            self.other_reading,
            f"no result: {reason}" if (reason := doubt(estimate, metric)) else "",
            "" if is_usual else coverage_sentence(self.convention, estimate.num_seeds),
        )
        return lines_of(
            "evaluation",
            name=self.task.name,
            metric=metric.title,
            score=points_cell(estimate),
            over=over,
            probes=[*map(_chosen_by_probe, self.selected)] if is_probe else [],
            num_seeds=len(self.selected),
            by_rate=Counter(result.learning_rate for result in self.selected).most_common(),
            tried=tried,
            is_level=all(len(rates) == len(tried) for rates in equal),
            at_end=chosen_ends(runs, tried),
            ties=sum(len(rates) > 1 for rates in equal),
            caveats=caveats,
            # Both are 0 where all predictions are equal, apart from rounding.
            num_flat=sum(test.get("spearman") == 0 == test.get("pearson") for test in tests),
            others=[
                (facts.metric(name).title, sum(test[name] for test in tests) / len(tests))
                for name in tests[0]
                if name != self.metric
            ],
            floors=baseline_sentences(self.baselines, estimate.mean, half_width=half_width),
            overlaps=self.task.overlaps,
            cut=truncations(first.num_truncated),
        )

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

    def _over_examples(self, estimate: Estimate) -> tuple[str, float]:
        """Return the interval of the only run over test examples, or why there is none, as text.

        With half of its width; 0 without one.
        """
        [run], unit = self.selected, KINDS[self.task.kind].facts.unit
        try:
            path = Store(self.folder.parent).folder(RESULT, run.id) / EXAMPLES
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
