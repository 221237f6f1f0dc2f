"""Drawing of a plan (SVG): one lane per arm, coloured by objective, from its branching point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from biphasic.amounts import thousands
from biphasic.analysis.figures.palette import GRID, INK, MUTED, PAPER, objective_styles
from biphasic.analysis.page.environment import fill
from biphasic.analysis.text import round_ticks
from biphasic.study.plan.plan import Plan

_LANE, _TOP, _RIGHT, _WIDTH, _BOTTOM = 18, 44, 24, 760, 36
_CHARACTER = 6.4
_TICKS = 8


def plan_svg(plan: Plan, *, title: str) -> str:
    """Return the drawing of a plan, with a title."""
    names = [arm.name for arm in plan.arms]
    lanes = {name: _TOP + _LANE * (row + 0.5) for row, name in enumerate(names)}
    left = round(16 + _CHARACTER * max(map(len, names)), 1)
    last = max(1, *(arm.recipe.total_steps for arm in plan.arms))

    def x(step: float) -> float:
        return round(left + _WIDTH * step / last, 1)

    owners = {segment.id: segment.arm.name for segment in plan.segments}
    colours = _colours(plan)
    bottom = _TOP + _LANE * len(names)
    return fill(
        "plan.svg.j2",
        title=title,
        width=round(left + _WIDTH + _RIGHT),
        height=bottom + _BOTTOM,
        left=left,
        top=_TOP,
        bottom=bottom,
        ink=INK,
        muted=MUTED,
        grid=GRID,
        paper=PAPER,
        key=list(_key(colours, left)),
        ticks=[
            (x(step), thousands(int(step)))
            for step in round_ticks(0, last, most=min(_TICKS, last), sizes=(1, 2, 5, 10))
        ],
        lanes=lanes,
        branches=[
            (x(segment.start), lanes[arm], lanes[own])
            for segment in plan.segments
            if (arm := owners.get(segment.parent or "", own := segment.arm.name)) != own
        ],
        bars=[
            (x(first), lanes[arm], round(x(end) - x(first), 1), colours[objective],
             f"{objective}, steps {first:,} to {end:,}")
            for arm, objective, first, end in _stretches(plan)
        ],
        points=[
            (x(point.step), lanes[owners.get(point.state, point.arm.name)],
             INK if point.is_final else PAPER, point.name)
            for point in plan.points
        ],
    )  # fmt: skip


def _colours(plan: Plan) -> dict[str, str]:
    """Return the colour of each objective, the same as in all figures."""
    phases = (placed.phase for arm in plan.arms for placed in arm.recipe.placed_phases)
    objectives = sorted({phase.short_name.upper() for phase in phases})
    styles = objective_styles(objectives)
    return {name: styles[name].color for name in objectives}


def _key(colours: Mapping[str, str], left: float) -> Iterator[tuple[float, str, str]]:
    for name, colour in colours.items():
        yield round(left, 1), colour, name
        left += 34 + _CHARACTER * len(name) * 1.3


def _stretches(plan: Plan) -> Iterator[tuple[str, str, int, int]]:
    """Yield arm, objective, first and last step for each phase of each segment."""
    for segment in plan.segments:
        for placed in segment.arm.recipe.placed_phases:
            first, end = max(segment.start, placed.start), min(segment.end, placed.end)
            if first < end:
                yield segment.arm.name, placed.phase.short_name.upper(), first, end
