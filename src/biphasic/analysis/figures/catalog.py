"""All figures in the order of the paper; skipped ones state the reason."""

from __future__ import annotations

from collections import Counter
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

Make = Callable[[Scores, Datasets], Chart | Skipped]
"""A function from a table and its datasets to a figure."""
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
    """Yield each figure that needs only scores.

    With `is_every`, there is a panel per dataset instead of each category's average. A reference is
    drawn in the background, on datasets that are the same in both.
    """
    datasets = shown_datasets(scores, is_every=is_every)
    for number, make in _NUMBERED:
        chart = _numbered(make(scores, datasets), number)
        yield _over(chart, make, scores, datasets, reference)
    yield from _further_shares(scores, datasets, reference)


def record_figures(records: StudyRecords, scores: Scores) -> Iterator[Chart | Skipped]:
    """Yield each figure that needs a study's records, beside their scores."""
    outcomes = (one for one in records.outcomes if one.status == "diverged")
    diverged = Counter(outcome.run.learning_rate for outcome in outcomes)
    yield _numbered(scores_by_learning_rate(scores, diverged=diverged), 5)
    yield _numbered(continued_losses(records), 12)


def run_figures(scores: Scores) -> Iterator[Chart | Skipped]:
    """Yield each figure that needs single runs, of results without records of training."""
    yield _numbered(scores_by_learning_rate(scores), 5)
    yield Skipped(LOSS_FIGURE, LOSS_TITLE, "needs records of training, but these are scores")


def without_records() -> Iterator[Skipped]:
    """Yield the figures that are skipped because a table of scores has no records."""
    reason = "needs records of single runs, but this is a table of means"
    yield Skipped(RATE_FIGURE, RATE_TITLE, reason)
    yield Skipped(LOSS_FIGURE, LOSS_TITLE, reason)


def _further_shares(
    scores: Scores, datasets: Sequence[DatasetInfo], reference: Scores | None
) -> Iterator[Chart | Skipped]:
    """Yield the figure of the CLM share for further model sizes, like the paper's for 1B."""
    further = sizes_with_shares(scores)[1:]
    if not further:
        title = "Scores by share of CLM and budget: another size"
        yield Skipped("clm-share-further", title, "needs CLM then MLM at a second model size")
    for size in further:
        make = partial(scores_by_clm_share, size=size)
        chart = _numbered(make(scores, datasets), 11)
        chart = replace(chart, name=f"{chart.name}-{_slug(size)}")
        yield _over(chart, make, scores, datasets, reference)


def _over(
    chart: Chart | Skipped,
    make: Make,
    scores: Scores,
    datasets: Sequence[DatasetInfo],
    reference: Scores | None,
) -> Chart | Skipped:
    """Add the same figure of another table to the background, for datasets that both have."""
    if reference is None or isinstance(chart, Skipped):
        return chart
    pairs = alike_datasets(scores, reference)
    theirs = {pairs[mine.name].name: mine.name for mine in datasets if mine.name in pairs}
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
