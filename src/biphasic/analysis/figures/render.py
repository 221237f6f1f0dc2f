"""Figures to bytes: the same records give the same bytes, without dates or outside settings."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from biphasic.analysis.figures.palette import VARIABLES

_DPI = 200
# The page sets the font; a style element inside an inline SVG would apply to the whole page.
_NOT_FOR_PAGES = re.compile(
    r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style[^>]*>.*?</style>\s*</defs>"
    r"| font-family: [^;\"]*;| transform=\"rotate\(-0 [^\"]*\"",
    re.DOTALL,
)
_OPENING = re.compile(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>')


@contextmanager
def drawing(*, salt: str, fonttype: str = "path") -> Iterator[None]:
    """Draw with our settings whatever a matplotlibrc says, and without warnings on rare scripts.

    Args:
        salt: Makes ids in an SVG unique to a figure, and the same every time.
        fonttype: `path` draws the text of an SVG, so that it needs no font; `none` keeps text.
    """
    with warnings.catch_warnings(), mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "svg.hashsalt": f"biphasic-{salt}",
                "svg.fonttype": fonttype,
                "pdf.fonttype": 42,  # TrueType, which publishers accept, text stays text
                "text.parse_math": False,  # a dollar in a name is a dollar
            }
        )
        # A label may use a script that the built-in font lacks: boxes are better than no figure.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def to_png(figure: Figure, *, dpi: int = _DPI) -> bytes:
    """Render a figure as PNG, without metadata."""
    return _saved(figure, "png", dpi=dpi, metadata={"Software": None})


def to_svg(figure: Figure, *, name: str, fonttype: str = "path") -> str:
    """Render a figure as a stand-alone SVG."""
    metadata = {"Date": None, "Creator": None}
    return _saved(figure, "svg", salt=name, fonttype=fonttype, metadata=metadata).decode()


def to_pdf(figure: Figure) -> bytes:
    """Render a figure as PDF with its fonts inside, for print."""
    metadata = {"CreationDate": None, "Creator": None, "Producer": None}
    return _saved(figure, "pdf", metadata=metadata)


def _saved(
    figure: Figure, ending: str, *, salt: str = "", fonttype: str = "path", **options: Any
) -> bytes:
    buffer = io.BytesIO()
    with drawing(salt=salt or ending, fonttype=fonttype):
        figure.savefig(buffer, format=ending, **options)
    return buffer.getvalue()


def page_svg(figure: Figure, *, name: str, alt: str) -> str:
    """Render a figure as an SVG element for a page: text stays text, colours follow the page.

    Args:
        figure: Drawn in the palette's light colours; each becomes the page's variable.
        name: Begins all its ids, so that they are unique on a page.
        alt: What it says to those who cannot see it.
    """
    figure.set_facecolor("none")
    svg = to_svg(figure, name=name, fonttype="none")
    svg = _NOT_FOR_PAGES.sub("", svg[svg.index("<svg") :])
    svg = svg.replace('id="', f'id="{name}-').replace("xlink:href=", "href=")
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    for variable, light, _ in VARIABLES:
        svg = svg.replace(light, f"var(--{variable})")
    svg = re.sub(r"\s*\n\s*", " ", svg)
    label = html.escape(alt, quote=True)
    return _OPENING.sub(
        lambda match: f'<svg viewBox="{match[1]}" role="img" aria-label="{label}">', svg, count=1
    )
