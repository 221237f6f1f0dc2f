"""All figures in the order of the paper, drawn or left out with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from biphasic.analysis.figures.chart import Chart, Skipped, with_reference
from biphasic.analysis.figures.choose import Datasets, shown_datasets
from biphasic.analysis.figures.factors import (
    mask_rate_sensitivity,
    scores_by_clm_share,
    scores_by_mask_rate,
    scores_by_size,
    sizes_with_shares,
)
from biphasic.analysis.figures.losses import LOSS_FIGURE, LOSS_TITLE, continued_losses
from biphasic.analysis.figures.progress import (
    continued_at_one_budget,
    continued_by_budget,
    scores_by_flops,
    scores_by_step,
)
from biphasic.analysis.figures.rates import RATE_FIGURE, RATE_TITLE, scores_by_learning_rate
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.reference import alike_datasets
from biphasic.analysis.scores.table import DatasetInfo, Scores
from biphasic.records import Convention

Make = Callable[[Scores, Datasets], Chart | Skipped]
"""From a table and the datasets to show, to a figure."""
_PAPER = "arXiv:2507.00994"


_NUMBERED: tuple[tuple[int, Make], ...] = (
    (2, scores_by_size),
    (3, scores_by_mask_rate),
    (4, scores_by_step),
    (6, scores_by_clm_share),
    (7, mask_rate_sensitivity),
    (8, continued_at_one_budget),
    (9, continued_by_budget),
    (10, scores_by_flops),
)


def score_figures(
    scores: Scores, *, is_every: bool = False, reference: Scores | None = None
) -> Iterator[Chart | Skipped]:
    """Make each figure that needs scores alone.

    Args:
        scores: A table.
        is_every: A panel per dataset, in place of each category's average.
        reference: A table to draw behind it, on datasets that are the same in both.
    """
    wanted = shown_datasets(scores, is_every=is_every)
    for number, make in _NUMBERED:
        chart = _numbered(make(scores, wanted), number)
        yield _over(chart, make, scores, wanted, reference)
    yield from _further_shares(scores, wanted, reference)


def record_figures(
    records: StudyRecords, *, convention: Convention | None = None
) -> Iterator[Chart | Skipped]:
    """Make each figure that needs a study's records; `convention` replaces the study's own."""
    yield _numbered(scores_by_learning_rate(records, convention=convention), 5)
    yield _numbered(continued_losses(records), 12)


def without_records() -> Iterator[Skipped]:
    """Name the figures that need records, where there is a table of scores alone."""
    reason = "needs the records of single runs, and this is a table of means"
    yield Skipped(RATE_FIGURE, RATE_TITLE, reason)
    yield Skipped(LOSS_FIGURE, LOSS_TITLE, reason)


def _further_shares(
    scores: Scores, wanted: Sequence[DatasetInfo], reference: Scores | None
) -> Iterator[Chart | Skipped]:
    """Make the figure of CLM's share for the sizes after the first, as the paper does for 1B."""
    further = sizes_with_shares(scores)[1:]
    if not further:
        title = "Scores by share of CLM and budget: another size"
        yield Skipped("clm-share-further", title, "needs CLM then MLM at a second model size")
    for size in further:
        make = partial(scores_by_clm_share, size=size)
        chart = _numbered(make(scores, wanted), 11)
        chart = replace(chart, name=f"{chart.name}-{_slug(size)}")
        yield _over(chart, make, scores, wanted, reference)


def _over(
    chart: Chart | Skipped,
    make: Make,
    scores: Scores,
    wanted: Sequence[DatasetInfo],
    reference: Scores | None,
) -> Chart | Skipped:
    """Put the same figure of another table behind one, where both have the same datasets."""
    if reference is None or isinstance(chart, Skipped):
        return chart
    pairs = alike_datasets(scores, reference)
    theirs = {pairs[mine.name].name: mine.name for mine in wanted if mine.name in pairs}
    if not theirs:
        return chart
    behind = make(reference, [d for d in reference.datasets if d.name in theirs])
    if isinstance(behind, Skipped):
        return chart
    panels = tuple(replace(panel, key=theirs[panel.key]) for panel in behind.panels)
    merged = with_reference(chart, replace(behind, panels=panels), name="paper")
    caption = f"{merged.caption} Grey: {reference.source}."
    return replace(merged, caption=caption)


def _numbered(chart: Chart | Skipped, number: int) -> Chart | Skipped:
    if isinstance(chart, Skipped):
        return chart
    return replace(chart, caption=f"{chart.caption} As Figure {number} of {_PAPER}.")


def _slug(text: str) -> str:
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    return kept[:40].strip("-") or "other"
