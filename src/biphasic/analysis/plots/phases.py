"""CLM then MLM: how much of the budget goes to CLM, and how much masking matters after it."""

from __future__ import annotations

from collections.abc import Sequence

from biphasic.analysis.palette import objective_styles, ordered_styles
from biphasic.analysis.plots.chart import (
    Axis,
    Chart,
    Lines,
    Skipped,
    score_panels,
    shown_datasets,
    ticks_at,
)
from biphasic.analysis.plots.choose import (
    at_rate,
    clm_share,
    finished,
    grouped,
    masking_note,
    percent,
    reference_rate,
    shared_places_note,
    sizes,
    steps_text,
)
from biphasic.analysis.plots.notes import interval_note
from biphasic.analysis.score_table import DatasetInfo, ModelInfo, Scores

_MIXED = "CLM+MLM"
_QUARTERS = (0.0, 25.0, 50.0, 75.0, 100.0)


def sizes_with_shares(scores: Scores) -> list[str]:
    """Return the sizes for which `scores_by_clm_share` has something to show."""
    return [size for size in sizes(finished(scores)) if _by_budget(scores, size)]


def scores_by_clm_share(
    scores: Scores, datasets: Sequence[DatasetInfo] | None = None, *, size: str | None = None
) -> Chart | Skipped:
    """Compare shares of CLM in a budget, a line per budget (the paper's Figures 6 and 11).

    Args:
        scores: A table.
        datasets: What gets a panel; by default a category's average, or its only dataset.
        size: Models of which size; by default the smallest that has what is needed.
    """
    name, title = "clm-share", "Scores by share of CLM and budget"
    known = sizes_with_shares(scores)
    size = size if size is not None else next(iter(known), None)
    if size is None or size not in known:
        reason = "needs CLM then MLM and another share of CLM, of one size, budget and masking rate"
        return Skipped(name, title, reason)
    by_budget = _by_budget(scores, size)
    styles = ordered_styles(sorted(by_budget))
    lines: Lines = [
        (
            f"{budget:,} steps",
            style,
            [(clm_share(model), model) for model in by_budget[budget]],
        )
        for budget, style in styles.items()
    ]
    panels = score_panels(scores, lines, datasets or shown_datasets(scores))
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    rate = reference_rate(model for found in by_budget.values() for model in found)
    caption = (
        f"{title}{f', {size}' if size else ''}. From MLM alone (left) to CLM alone (right); what "
        f"is not CLM is MLM, after it. {masking_note(rate)}"
        f"{shared_places_note(lines)}"
        f"{interval_note(scores)}"
    )
    axis = Axis("share of CLM in the steps", "linear", ticks_at(_QUARTERS, lambda x: f"{x:g} %"))
    suffix = f": {size}" if size else ""
    return Chart(name, f"{title}{suffix}", caption, axis, panels)


def _by_budget(scores: Scores, size: str) -> dict[int, list[ModelInfo]]:
    """Return the models of each budget that has CLM then MLM and at least one other share."""
    models = [
        model
        for model in finished(scores)
        if model.size == size and model.objective in ("MLM", "CLM", _MIXED)
    ]
    rate = reference_rate(model for model in models if model.objective == _MIXED)
    groups = grouped(at_rate(models, rate), lambda model: model.total_steps)
    return {
        budget: found
        for budget, found in groups.items()
        if any(model.objective == _MIXED for model in found)
        and len({round(clm_share(model), 3) for model in found}) > 1
    }


def mask_rate_sensitivity(
    scores: Scores, datasets: Sequence[DatasetInfo] | None = None
) -> Chart | Skipped:
    """Compare how MLM and CLM then MLM depend on the masking rate (the paper's Figure 7).

    Args:
        scores: A table.
        datasets: What gets a panel; by default a category's average, or its only dataset.
    """
    name, title = "mask-rate-sensitivity", "Masking rate: MLM against CLM then MLM"
    models = [model for model in finished(scores) if model.mask_rate is not None]
    pairs = []
    groups = grouped(models, lambda model: (model.size, model.total_steps))
    for (size, budget), group in groups.items():
        alone = [model for model in group if model.objective == "MLM"]
        mixed = grouped((m for m in group if m.objective == _MIXED), lambda model: model.clm_steps)
        for clm_steps, after in mixed.items():
            common = _rates(alone) & _rates(after)
            if len(common) > 1:
                pairs.append((len(common), budget, clm_steps, size, alone, after))
    if not pairs:
        reason = "needs MLM and CLM then MLM of one size and budget, both at two masking rates"
        return Skipped(name, title, reason)
    _, budget, clm_steps, size, alone, after = max(pairs, key=lambda pair: pair[:3])
    styles = objective_styles(())
    lines: Lines = [
        (label, styles[objective], [(100 * (model.mask_rate or 0.0), model) for model in found])
        for label, objective, found in (
            ("MLM", "MLM", alone),
            (f"CLM {steps_text(clm_steps)}, then MLM {steps_text(budget - clm_steps)}", _MIXED,
             after),
        )
    ]  # fmt: skip
    panels = score_panels(scores, lines, datasets or shown_datasets(scores))
    if not panels:
        return Skipped(name, title, "none of its models has a score")
    ticks = ticks_at(
        (x for _, _, found in lines for x, _ in found), lambda place: percent(place / 100)
    )
    caption = (
        f"{title}{f', {size}' if size else ''}, {budget:,} steps in all. "
        f"{shared_places_note(lines)}"
        f"{interval_note(scores)}"
    )
    return Chart(name, title, caption, Axis("tokens masked", "linear", ticks), panels)


def _rates(models: Sequence[ModelInfo]) -> set[float | None]:
    return {model.mask_rate for model in models}
