"""Figures of scores by model size, masking rate and share of CLM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from operator import attrgetter

from biphasic.amounts import percent
from biphasic.analysis.figures.chart import Axis, ticks_at
from biphasic.analysis.figures.choose import (
    Drawing,
    Line,
    at_rate,
    category_axis,
    clm_share,
    finished,
    masking_note,
    placed,
    places_of,
    recipe,
    recipe_lines,
    reference_rate,
    score_figure,
    sizes,
    steps_text,
)
from biphasic.analysis.scores.table import ModelInfo, Scores, grouped
from biphasic.palette import objective_styles, ordered_styles

_MIXED = "CLM+MLM"
_QUARTERS = (0.0, 25.0, 50.0, 75.0, 100.0)


@score_figure(2, "size", "Scores by model size and objective")
def scores_by_size(scores: Scores) -> Drawing | str:
    """Compare objectives over model sizes, with equal training steps."""
    models = [model for model in finished(scores) if model.size]
    if len(sizes(models)) < 2:
        return "needs two model sizes or more"
    rate = reference_rate(models)
    chosen, budget = _varied(
        at_rate(models, rate), by=lambda m: (recipe(m), m.optimizer), factor=attrgetter("size")
    )
    if not chosen:
        return "needs an objective at two model sizes with equal training steps"
    order = sizes(chosen)
    lines = recipe_lines(chosen, lambda model: float(order.index(model.size)))
    note = f", after {budget:,} steps. {masking_note(rate)}"
    return Drawing(lines, category_axis("model size", order), note)


@score_figure(3, "mask-rate", "MLM by masking rate and model size")
def scores_by_mask_rate(scores: Scores) -> Drawing | str:
    """Compare masking rates of MLM at each model size."""
    models = [m for m in finished(scores) if m.objective == "MLM" and m.mask_rate is not None]
    way = attrgetter("size", "optimizer")
    chosen, budget = _varied(models, by=way, factor=attrgetter("mask_rate"))
    if not chosen:
        return "needs MLM at two masking rates, with one size and budget"
    by_way, order = grouped(chosen, way), sizes(chosen)
    styles = ordered_styles(sorted(by_way, key=lambda key: order.index(key[0])))
    are_named = len({optimizer for _, optimizer in styles}) > 1
    lines = [
        (
            f"{size or 'MLM'}, {optimizer}" if are_named else size or "MLM",
            style,
            placed(by_way[size, optimizer], _masked),
        )
        for (size, optimizer), style in styles.items()
    ]
    return Drawing(lines, _mask_axis(lines), f", after {budget:,} steps. ")


def _varied(
    models: Iterable[ModelInfo],
    *,
    by: Callable[[ModelInfo], object],
    factor: Callable[[ModelInfo], object],
) -> tuple[list[ModelInfo], int]:
    """Return the models of the most common budget that differ in a factor, and the budget."""
    # Only models that agree in `by` and in their number of steps are compared.
    groups = grouped(models, lambda model: (by(model), model.total_steps))
    varied = [m for group in groups.values() if len(set(map(factor, group))) > 1 for m in group]
    counts = Counter(model.total_steps for model in varied)
    budget = max(counts, key=lambda steps: (counts[steps], steps), default=0)
    return [model for model in varied if model.total_steps == budget], budget


def sizes_with_shares(scores: Scores) -> list[str]:
    """Return the sizes that `scores_by_clm_share` can draw."""
    return [size for size in sizes(finished(scores)) if _by_budget(scores, size)]


@score_figure(6, "clm-share", "Scores by share of CLM and budget")
def scores_by_clm_share(scores: Scores, *, size: str | None = None) -> Drawing | str:
    """Compare shares of CLM at equal budgets, by default at the least size."""
    # Each budget and each optimizer has a line.
    known = sizes_with_shares(scores)
    size = size if size is not None else next(iter(known), None)
    if size is None or size not in known:
        return "needs CLM then MLM and another share of CLM, at one size, budget and masking rate"
    by_budget = _by_budget(scores, size)
    styles = ordered_styles(sorted(by_budget))
    are_named = len({optimizer for _, optimizer in styles}) > 1
    lines = [
        (
            f"{budget:,} steps, {optimizer}" if are_named else f"{budget:,} steps",
            style,
            placed(by_budget[budget, optimizer], clm_share),
        )
        for (budget, optimizer), style in styles.items()
    ]
    rate = reference_rate(model for members in by_budget.values() for model in members)
    note = (
        f"{_after(size)}. From only MLM (left) to only CLM (right); MLM follows CLM. "
        f"{masking_note(rate)}"
    )
    axis = Axis("share of CLM in the steps", "linear", ticks_at(_QUARTERS, lambda x: f"{x:g} %"))
    return Drawing(lines, axis, note, of=f": {size}" if size else "")


def _by_budget(scores: Scores, size: str) -> dict[tuple[int, str], list[ModelInfo]]:
    """Return the models of each budget and optimizer with CLM then MLM and another share."""
    models = [
        model
        for model in finished(scores)
        if model.size == size and model.objective in ("MLM", "CLM", _MIXED)
    ]
    rate = reference_rate(model for model in models if model.objective == _MIXED)
    groups = grouped(at_rate(models, rate), lambda model: (model.total_steps, model.optimizer))
    return {
        key: members
        for key, members in groups.items()
        if any(model.objective == _MIXED for model in members)
        and len({round(clm_share(model), 3) for model in members}) > 1
    }


@score_figure(7, "mask-rate-sensitivity", "Masking rate: MLM against CLM then MLM")
def mask_rate_sensitivity(scores: Scores) -> Drawing | str:
    """Compare the sensitivity of MLM and of CLM then MLM to the masking rate."""
    models = [model for model in finished(scores) if model.mask_rate is not None]
    pairs = []
    groups = grouped(models, attrgetter("size", "total_steps", "optimizer"))
    for (size, budget, optimizer), group in groups.items():
        alone = [model for model in group if model.objective == "MLM"]
        mixed = grouped((m for m in group if m.objective == _MIXED), lambda model: model.clm_steps)
        for clm_steps, after in mixed.items():
            common = {model.mask_rate for model in alone} & {model.mask_rate for model in after}
            if len(common) > 1:
                pairs.append((len(common), budget, clm_steps, size, optimizer, alone, after))
    if not pairs:
        return "needs MLM and CLM then MLM of one size and budget, both at two masking rates"
    _, budget, clm_steps, size, optimizer, alone, after = max(pairs, key=lambda pair: pair[:3])
    styles = objective_styles(())
    name = f"CLM {steps_text(clm_steps)}, then MLM {steps_text(budget - clm_steps)}"
    lines = [
        ("MLM", styles["MLM"], placed(alone, _masked)),
        (name, styles[_MIXED], placed(after, _masked)),
    ]
    by = f", by {optimizer}" if len({model.optimizer for model in models}) > 1 else ""
    return Drawing(lines, _mask_axis(lines), f"{_after(size)}, {budget:,} steps in all{by}. ")


def _after(size: str) -> str:
    return f", {size}" if size else ""


def _masked(model: ModelInfo) -> float:
    """Return the masking rate in percent."""
    return 100 * (model.mask_rate or 0.0)


def _mask_axis(lines: Iterable[Line]) -> Axis:
    ticks = ticks_at(places_of(lines), lambda place: percent(place / 100))
    return Axis("tokens masked", "linear", ticks)
