"""Results of analyses as people look at them: text, tables and drawings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from biphasic.analysis.claims.render import claims_json, claims_lines, claims_markdown
from biphasic.analysis.statistics.compare import family_of
from biphasic.analysis.tables.text import (
    comparison_lines,
    notes,
    score_rows,
    score_tables,
    scores_json,
)
from biphasic.analysis.text import flat, plain
from biphasic.palette import objective_styles
from biphasic.shown import Shown, inline, table_lines

if TYPE_CHECKING:
    from rich.table import Table

    from biphasic.analysis.claims import ClaimResult
    from biphasic.analysis.claims.render import Changes
    from biphasic.analysis.records import Problem
    from biphasic.analysis.scores.table import Scores
    from biphasic.analysis.statistics.compare import ModelComparison

_MOST_MODELS = 40  # of a drawing


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
        from biphasic.analysis.figures.draw import to_svg  # noqa: PLC0415
        from biphasic.analysis.figures.strips import draw_strips  # noqa: PLC0415

        models = self.scores.models
        if not self.scores.datasets or len(models) > _MOST_MODELS:
            return ""
        styles = objective_styles(sorted({model.objective for model in models}))
        by_model = {model.name: styles[model.objective] for model in models}
        titles = {dataset.name: dataset.name for dataset in self.scores.datasets}
        return inline(to_svg(draw_strips(self.scores, by_model, titles), name="scores"))

    def compare(self) -> Comparisons:
        """Test whether the best model of each dataset differs from the others."""
        return Comparisons(self.scores)


@dataclass(frozen=True, repr=False)
class Comparisons(Shown):
    """What `compare` returns: differences of models on each dataset, and whether they are clear.

    Attributes:
        scores: The table of scores that is tested.
    """

    scores: Scores

    def results(self) -> Iterator[ModelComparison]:
        """Yield the planned comparisons, and those of each dataset's best model with the others."""
        for dataset in self.scores.datasets:
            family = family_of(self.scores, dataset.name)
            yield from family.of_plan
            yield from (one for one in family.with_best if not one.is_planned)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each comparison; p values are corrected."""
        names = self.scores.written_names
        rows = []
        for one in self.results():
            low, high = one.interval or (None, None)
            rows.append(
                {
                    "dataset": one.dataset,
                    "first": names[one.first],
                    "second": names[one.second],
                    "difference": one.difference.mean,
                    "low": low,
                    "high": high,
                    "p": one.p_adjusted,
                    "verdict": one.verdict,
                    "is_planned": one.is_planned,
                }
            )
        return rows

    def lines(self) -> Iterator[str]:
        """Return the comparisons in sentences."""
        return map(plain, comparison_lines(self.scores))


@dataclass(frozen=True, repr=False)
class CheckedClaims(Shown):
    """What `claims` returns: claims and their verdicts.

    Attributes:
        results: Each claim with its checks.
        scores: The table of scores they were checked on.
        changes: Verdicts that depend on the convention: by `paper` and by `standard`.
        problems: Problems of the records.
    """

    results: tuple[ClaimResult, ...]
    scores: Scores
    changes: Changes
    problems: tuple[Problem, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each claim."""
        return [
            {
                "id": one.claim.id,
                "verdict": one.verdict,
                "claim": one.claim.text,
                "numbers": one.numbers,
                "missing": one.missing,
            }
            for one in self.results
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything, as `--json` prints it."""
        return claims_json(self.results, self.scores, self.changes)

    def to_markdown(self, *, details: bool = False) -> str:
        """Return a page in Markdown."""
        return claims_markdown(self.results, self.scores, self.changes, with_details=details)

    def lines(self, *, details: bool = False) -> Iterator[str]:
        """Return the claims as plain lines, decided ones first."""
        return claims_lines(self.results, self.scores, self.changes, with_details=details)
