"""A plan as a picture (SVG): a line for each arm, coloured by objective, from where it is new.

Written by hand rather than drawn with a library, so that the same plan gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from biphasic.analysis.figures.palette import GRID, INK, MUTED, PAPER, SERIES
from biphasic.analysis.text import plain, round_step
from biphasic.study.naming import short_number
from biphasic.study.plan import Plan
from biphasic.study.training_plan import PlannedPoint, Segment

_LANE, _TOP, _RIGHT, _WIDTH, _BOTTOM = 18, 44, 24, 760, 36
_CHARACTER = 6.4
_TICKS = 8


@dataclass(frozen=True)
class _Canvas:
    """Where things are.

    Attributes:
        lanes: Row of each arm.
        left: Width of the names.
        last: The last step of all arms.
    """

    lanes: dict[str, int]
    left: float
    last: int

    def x(self, step: int) -> float:
        return round(self.left + _WIDTH * step / max(self.last, 1), 1)

    def y(self, arm: str) -> float:
        return _TOP + _LANE * (self.lanes[arm] + 0.5)


def plan_svg(plan: Plan, *, title: str) -> str:
    """Return the picture of a plan.

    Args:
        plan: The plan.
        title: Heads the picture.
    """
    names = [arm.config.name for arm in plan.arms]
    canvas = _Canvas(
        lanes={name: row for row, name in enumerate(names)},
        left=round(16 + _CHARACTER * max(map(len, names)), 1),
        last=max(arm.lineage.recipe.total_steps for arm in plan.arms),
    )
    width = round(canvas.left + _WIDTH + _RIGHT)
    height = _TOP + _LANE * len(names) + _BOTTOM
    colours = _colours(plan)
    owners = {segment.id: segment.arm for segment in plan.segments}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11" role="img">',
        f"<title>{escape(plain(title))}</title>",
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        *_legend(title, colours, canvas),
        *_axis(canvas, height),
        *(_name(name, canvas) for name in names),
        *_branches(plan, owners, canvas),
        *(line for segment in plan.segments for line in _segment(segment, colours, canvas)),
        *(_point(point, owners, canvas) for point in plan.points),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _colours(plan: Plan) -> dict[str, str]:
    found = (p.phase.objective for a in plan.arms for p in a.lineage.recipe.placed_phases)
    objectives = list(dict.fromkeys(found))
    return {name: SERIES[i % len(SERIES)] for i, name in enumerate(sorted(objectives))}


def _legend(title: str, colours: dict[str, str], canvas: _Canvas) -> Iterator[str]:
    yield f'<text x="8" y="18" font-weight="bold">{escape(plain(title))}</text>'
    place = canvas.left
    for name, colour in colours.items():
        yield f'<rect x="{place:.1f}" y="24" width="14" height="6" fill="{colour}"/>'
        yield f'<text x="{place + 18:.1f}" y="31">{escape(name.upper())}</text>'
        place += 34 + _CHARACTER * len(name) * 1.3


def _axis(canvas: _Canvas, height: int) -> Iterator[str]:
    bottom = height - _BOTTOM
    for step in _round_steps(canvas.last):
        x = canvas.x(step)
        yield f'<path d="M{x} {_TOP}V{bottom}" stroke="{GRID}"/>'
        text = short_number(step)
        yield f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" fill="{MUTED}">{text}</text>'
    yield f'<text x="{canvas.left}" y="{bottom + 30}" fill="{MUTED}">optimizer steps</text>'


def _round_steps(last: int) -> list[int]:
    """Return round numbers from 0: at most eight, and the last of them not beyond the end."""
    every = int(round_step(max(last / _TICKS, 1), (1, 2, 5, 10)))
    return list(range(0, last + 1, every))


def _name(name: str, canvas: _Canvas) -> str:
    return f'<text x="8" y="{canvas.y(name) + 4}">{escape(name)}</text>'


def _branches(plan: Plan, owners: dict[str, str], canvas: _Canvas) -> Iterator[str]:
    """Yield a line from each branch's beginning up to the arm that it leaves."""
    for segment in plan.segments:
        arm = owners.get(segment.parent or "")
        if arm is not None and arm != segment.arm:
            x = canvas.x(segment.start)
            yield f'<path d="M{x} {canvas.y(arm)}V{canvas.y(segment.arm)}" stroke="{MUTED}"/>'


def _segment(segment: Segment, colours: dict[str, str], canvas: _Canvas) -> Iterator[str]:
    y = canvas.y(segment.arm) - 3
    for placed in segment.recipe.placed_phases:
        first, last = max(segment.start, placed.start), min(segment.end, placed.end)
        if first < last:
            x, colour = canvas.x(first), colours[placed.phase.objective]
            told = f"{placed.phase.objective.upper()}, steps {first:,} to {last:,}"
            yield (
                f'<rect x="{x}" y="{y}" width="{canvas.x(last) - x:.1f}" height="6" '
                f'fill="{colour}"><title>{escape(told)}</title></rect>'
            )


def _point(point: PlannedPoint, owners: dict[str, str], canvas: _Canvas) -> str:
    arm = owners.get(point.state, point.arm.name)
    fill = INK if point.is_final else PAPER
    return (
        f'<circle cx="{canvas.x(point.step)}" cy="{canvas.y(arm)}" r="3.5" fill="{fill}" '
        f'stroke="{INK}"><title>{escape(point.name)}</title></circle>'
    )
