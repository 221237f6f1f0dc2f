"""Figures of scores by model size, masking rate and share of CLM.

Each function takes a table and the datasets with a panel. Figure numbers are the paper's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from biphasic.analysis.figures.chart import Axis, Chart, Skipped, ticks_at
from biphasic.analysis.figures.choose import (
    Datasets,
    Lines,
    at_rate,
    clm_share,
    finished,
    grouped,
    masking_note,
    percent,
    recipe,
    recipe_looks,
    reference_rate,
    score_chart,
    sizes,
    steps_text,
)
from biphasic.analysis.scores.table import ModelInfo, Scores
from biphasic.palette import objective_styles, ordered_styles

_MIXED = "CLM+MLM"
_QUARTERS = (0.0, 25.0, 50.0, 75.0, 100.0)


def scores_by_size(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Compare objectives over model sizes, with equal training steps (Figure 2)."""
    name, title = "size", "Scores by model size and objective"
    models = [model for model in finished(scores) if model.size]
    if len(sizes(models)) < 2:
        return Skipped(name, title, "needs two model sizes or more")
    rate = reference_rate(models)
    chosen, budget = _varied(at_rate(models, rate), by=recipe, factor=attrgetter("size"))
    if not chosen:
        return Skipped(
            name, title, "needs an objective at two model sizes with equal training steps"
        )
    order = sizes(chosen)
    recipes = grouped(chosen, recipe)
    looks = recipe_looks(recipes)
    lines = [
        (*looks[key], [(float(order.index(model.size)), model) for model in members])
        for key, members in recipes.items()
    ]
    caption = f"{title}, after {budget:,} steps. {masking_note(rate)}"
    axis = Axis("model size", "category", tuple((float(i), size) for i, size in enumerate(order)))
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=caption)


def scores_by_mask_rate(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Compare masking rates of MLM at each model size (Figure 3)."""
    name, title = "mask-rate", "MLM by masking rate and model size"
    models = [
        model
        for model in finished(scores)
        if model.objective == "MLM" and model.mask_rate is not None
    ]
    chosen, budget = _varied(models, by=attrgetter("size"), factor=attrgetter("mask_rate"))
    if not chosen:
        return Skipped(name, title, "needs MLM at two masking rates, with one size and budget")
    styles = ordered_styles(sizes(chosen))
    by_size = grouped(chosen, lambda model: model.size)
    lines: Lines = [
        (size or "MLM", style, [(100 * (model.mask_rate or 0.0), model) for model in by_size[size]])
        for size, style in styles.items()
    ]
    caption = f"{title}, after {budget:,} steps. "
    axis = _mask_axis(lines)
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=caption)


def _varied(
    models: Iterable[ModelInfo],
    *,
    by: Callable[[ModelInfo], object],
    factor: Callable[[ModelInfo], object],
) -> tuple[list[ModelInfo], int]:
    """Return the models of the most common budget that differ in a factor, and the budget.

    Only models that agree in `by` and in their number of steps are compared.
    """
    groups = grouped(models, lambda model: (by(model), model.total_steps))
    varied = [m for group in groups.values() if len(set(map(factor, group))) > 1 for m in group]
    counts = Counter(model.total_steps for model in varied)
    budget = max(counts, key=lambda steps: (counts[steps], steps), default=0)
    return [model for model in varied if model.total_steps == budget], budget


def sizes_with_shares(scores: Scores) -> list[str]:
    """Return the sizes that `scores_by_clm_share` can draw."""
    return [size for size in sizes(finished(scores)) if _by_budget(scores, size)]


def scores_by_clm_share(
    scores: Scores, datasets: Datasets = None, *, size: str | None = None
) -> Chart | Skipped:
    """Compare shares of CLM at equal budgets, one line per budget (Figures 6 and 11).

    The default size is the smallest that can be drawn.
    """
    name, title = "clm-share", "Scores by share of CLM and budget"
    known = sizes_with_shares(scores)
    size = size if size is not None else next(iter(known), None)
    if size is None or size not in known:
        reason = "needs CLM then MLM and another share of CLM, at one size, budget and masking rate"
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
    rate = reference_rate(model for members in by_budget.values() for model in members)
    caption = (
        f"{title}{f', {size}' if size else ''}. From only MLM (left) to only CLM (right); MLM "
        f"follows CLM. {masking_note(rate)}"
    )
    axis = Axis("share of CLM in the steps", "linear", ticks_at(_QUARTERS, lambda x: f"{x:g} %"))
    title += f": {size}" if size else ""
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=caption)


def _by_budget(scores: Scores, size: str) -> dict[int, list[ModelInfo]]:
    """Return the models of each budget with CLM then MLM and at least one other share."""
    models = [
        model
        for model in finished(scores)
        if model.size == size and model.objective in ("MLM", "CLM", _MIXED)
    ]
    rate = reference_rate(model for model in models if model.objective == _MIXED)
    groups = grouped(at_rate(models, rate), lambda model: model.total_steps)
    return {
        budget: members
        for budget, members in groups.items()
        if any(model.objective == _MIXED for model in members)
        and len({round(clm_share(model), 3) for model in members}) > 1
    }


def mask_rate_sensitivity(scores: Scores, datasets: Datasets = None) -> Chart | Skipped:
    """Compare the sensitivity of MLM and of CLM then MLM to the masking rate (Figure 7)."""
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
        (label, styles[objective], [(100 * (model.mask_rate or 0.0), model) for model in members])
        for label, objective, members in (
            ("MLM", "MLM", alone),
            (f"CLM {steps_text(clm_steps)}, then MLM {steps_text(budget - clm_steps)}", _MIXED,
             after),
        )
    ]  # fmt: skip
    caption = f"{title}{f', {size}' if size else ''}, {budget:,} steps in all. "
    axis = _mask_axis(lines)
    return score_chart(name, title, scores, lines, datasets, axis=axis, caption=caption)


def _rates(models: Sequence[ModelInfo]) -> set[float | None]:
    return {model.mask_rate for model in models}


def _mask_axis(lines: Lines) -> Axis:
    places = (x for _, _, models in lines for x, _ in models)
    return Axis("tokens masked", "linear", ticks_at(places, lambda place: percent(place / 100)))
