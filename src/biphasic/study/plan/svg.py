"""Drawing of a plan (SVG): one lane per arm, coloured by objective, from its branching point."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from biphasic.amounts import round_ticks, thousands
from biphasic.errors import visible
from biphasic.palette import GRID, INK, MUTED, PAPER, objective_styles
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
    bottom = _TOP + _LANE * len(names)

    def x(step: float) -> float:
        return round(left + _WIDTH * step / last, 1)

    size = {"width": round(left + _WIDTH + _RIGHT), "height": bottom + _BOTTOM}
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    _set(svg, viewBox=f"0 0 {size['width']} {size['height']}", **size)
    _set(svg, font_family="sans-serif", font_size=11, fill=INK)
    _add(svg, "title", title)
    _add(svg, "rect", fill=PAPER, **size)
    _add(svg, "text", title, x=8, y=18, font_weight="bold")
    phases = (placed.phase for arm in plan.arms for placed in arm.recipe.placed_phases)
    objectives = sorted({phase.short_name.upper() for phase in phases})
    styles, place = objective_styles(objectives), left
    colours = {name: styles[name].color for name in objectives}
    for name, colour in colours.items():
        _add(svg, "path", d=f"M{place:.1f} 27h14", stroke=colour, stroke_width=6)
        _add(svg, "text", name, x=round(place + 18, 1), y=31)
        place += 34 + _CHARACTER * len(name) * 1.3
    for step in round_ticks(0, last, most=min(_TICKS, last), sizes=(1, 2, 5, 10)):
        _add(svg, "path", d=f"M{x(step)} {_TOP}V{bottom}", stroke=GRID)
        tick = {"text_anchor": "middle", "fill": MUTED}
        _add(svg, "text", thousands(int(step)), x=x(step), y=bottom + 16, **tick)
    _add(svg, "text", "optimizer steps", x=left, y=bottom + 30, fill=MUTED)
    for name, y in lanes.items():
        _add(svg, "text", name, x=8, y=y + 4)
    owners = {segment.id: segment.arm.name for segment in plan.segments}
    for segment in plan.segments:
        own = segment.arm.name
        if (arm := owners.get(segment.parent or "", own)) != own:
            _add(svg, "path", d=f"M{x(segment.start)} {lanes[arm]}V{lanes[own]}", stroke=MUTED)
    for segment in plan.segments:
        for placed in segment.arm.recipe.placed_phases:
            objective = placed.phase.short_name.upper()
            first, end = max(segment.start, placed.start), min(segment.end, placed.end)
            if first < end:
                bar = _add(
                    svg, "rect", x=x(first), y=lanes[segment.arm.name] - 3,
                    width=round(x(end) - x(first), 1), height=6, fill=colours[objective],
                )  # fmt: skip
                _add(bar, "title", f"{objective}, steps {first:,} to {end:,}")
    for point in plan.points:
        y, fill = lanes[owners.get(point.state, point.arm.name)], INK if point.is_final else PAPER
        circle = _add(svg, "circle", cx=x(point.step), cy=y, r=3.5, fill=fill, stroke=INK)
        _add(circle, "title", point.name)
    ET.indent(svg, space="")
    return ET.tostring(svg, encoding="unicode") + "\n"


def _add(parent: ET.Element, tag: str, text: str = "", /, **attributes: object) -> ET.Element:
    element = ET.SubElement(parent, tag)
    element.text = visible(text) or None
    _set(element, **attributes)
    return element


def _set(element: ET.Element, **attributes: object) -> None:
    for name, value in attributes.items():
        element.set(name.replace("_", "-"), str(value))
