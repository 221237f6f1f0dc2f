"""All figures in the order of the paper; skipped ones state the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from biphasic.analysis.figures.chart import (
    Chart,
    ScoreFigure,
    Skipped,
    shown_datasets,
    with_reference,
)
from biphasic.analysis.figures.factors import (
    continued_at_one_budget,
    continued_by_budget,
    mask_rate_sensitivity,
    scores_by_clm_share,
    scores_by_flops,
    scores_by_labels,
    scores_by_mask_rate,
    scores_by_size,
    scores_by_step,
    scores_by_train_examples,
    sizes_with_shares,
    tasks_by_examples,
)
from biphasic.analysis.figures.runs import (
    LOSS_FIGURE,
    LOSS_TITLE,
    RATE_FIGURE,
    RATE_TITLE,
    continued_losses,
    scores_by_learning_rate,
)
from biphasic.analysis.records import StudyRecords
from biphasic.analysis.scores.reference import alike_datasets
from biphasic.analysis.scores.table import Scores

_FIGURES = (
    scores_by_size, scores_by_mask_rate, scores_by_step, scores_by_clm_share,
    mask_rate_sensitivity, continued_at_one_budget, continued_by_budget, scores_by_flops,
)  # fmt: skip


def score_figures(
    scores: Scores, *, is_every: bool = False, reference: Scores | None = None
) -> Iterator[Chart | Skipped]:
    """Yield each figure that needs only scores."""
    # With `is_every`, there is a panel per dataset instead of each category's average. A reference
    # is drawn in the background, on datasets that are the same in both.
    draw = partial(_drawn, scores, is_every=is_every, reference=reference)
    yield from map(draw, _FIGURES)
    # The figure of the CLM share for further model sizes, like the paper's for 1B.
    share = scores_by_clm_share
    further = sizes_with_shares(scores)[1:]
    if not further:
        title = f"{share.title}: another size"
        yield Skipped("clm-share-further", title, "needs CLM then MLM at a second model size")
    for size in further:
        kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in size.lower())
        slug = kept[:40].strip("-") or "other"
        figure = ScoreFigure(11, f"{share.name}-{slug}", share.title,
                             partial(share.plan, size=size))  # fmt: skip
        yield draw(figure)
    trained = [model for model in scores.models if model.is_final and model.labels]
    if len({(model.optimizer, model.total_steps) for model in trained}) > 1:
        yield draw(scores_by_labels)
    if tasks_by_examples(scores):
        yield scores_by_train_examples(scores)


def run_figures(scores: Scores, records: StudyRecords | None = None) -> Iterator[Chart | Skipped]:
    """Yield each figure of single runs, and of a study's records of training."""
    if records is None and scores.is_published:
        reason = "needs records of single runs, but this is a table of means"
        yield Skipped(RATE_FIGURE, RATE_TITLE, reason)
        yield Skipped(LOSS_FIGURE, LOSS_TITLE, reason)
        return
    results = records.results_of(records.runs) if records else ()
    diverged = Counter(one.learning_rate for one in results if one.status == "diverged")
    yield scores_by_learning_rate(scores, diverged=diverged)
    if records:
        yield continued_losses(records)
    else:
        yield Skipped(LOSS_FIGURE, LOSS_TITLE, "needs records of training, but these are scores")


def _drawn(
    scores: Scores, make: ScoreFigure, *, is_every: bool, reference: Scores | None
) -> Chart | Skipped:
    """Draw a figure, with that of another table behind it, for datasets that both have."""
    datasets = shown_datasets(scores, is_every=is_every)
    chart = make(scores, datasets)
    if reference is None or isinstance(chart, Skipped):
        return chart
    pairs = alike_datasets(scores, reference)
    theirs = {pairs[mine.name].name: mine.name for mine in datasets if mine.name in pairs}
    behind = [dataset for dataset in reference.datasets if dataset.name in theirs]
    reference_chart = make(reference, behind) if behind else None
    if not isinstance(reference_chart, Chart):
        return chart
    panels = tuple(replace(panel, key=theirs[panel.key]) for panel in reference_chart.panels)
    merged = with_reference(chart, replace(reference_chart, panels=panels), name="paper")
    # Its models may have other numbers of steps and masking rates.
    is_same = reference_chart.note == chart.note
    behind_it = f"{reference.source}{'.' if is_same else reference_chart.note.rstrip()}"
    return replace(merged, caption=f"{merged.caption} Grey: {behind_it}")
