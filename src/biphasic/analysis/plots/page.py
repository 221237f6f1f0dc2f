"""Figures for a page: text stays text, colours follow the page's light or dark ground."""

from __future__ import annotations

import html
import re

from matplotlib.figure import Figure

from biphasic.analysis.palette import VARIABLES
from biphasic.analysis.plots.chart import Chart
from biphasic.analysis.plots.draw import PHONE, Layout, draw_chart
from biphasic.analysis.plots.render import to_svg

# The page sets the font; a style element inside an inline SVG would apply to the whole page.
_NOT_FOR_PAGES = (
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),
    re.compile(r"<style[^>]*>.*?</style>", re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"<defs>\s*</defs>"),
    re.compile(r" font-family: [^;\"]*;"),
    re.compile(r' transform="rotate\(-0 [^"]*"'),
)
_OPENING = re.compile(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>')


def chart_svg(chart: Chart, layout: Layout = PHONE) -> str:
    """Render a chart for a page, as wide as a phone unless told otherwise."""
    return page_svg(draw_chart(chart, layout), name=chart.name, alt=chart.alt)


def page_svg(figure: Figure, *, name: str, alt: str) -> str:
    """Render a figure as an SVG element for a page.

    Args:
        figure: Drawn in the palette's light colours; each becomes the page's variable.
        name: Begins all its ids, so that they are unique on a page.
        alt: What it says to those who cannot see it.
    """
    figure.set_facecolor("none")
    svg = to_svg(figure, name=name, fonttype="none")
    svg = svg[svg.index("<svg") :]
    for pattern in _NOT_FOR_PAGES:
        svg = pattern.sub("", svg)
    svg = svg.replace('id="', f'id="{name}-').replace("xlink:href=", "href=")
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    for variable, light, _ in VARIABLES:
        svg = svg.replace(light, f"var(--{variable})")
    svg = re.sub(r"\s*\n\s*", " ", svg)
    label = html.escape(alt, quote=True)
    return _OPENING.sub(
        lambda match: f'<svg viewBox="{match[1]}" role="img" aria-label="{label}">', svg, count=1
    )
