"""Reproducible rendering of figures: the same records give the same bytes."""

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

from biphasic.palette import VARIABLES

_DPI = 200
_METADATA = {
    "png": ("Software",),
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Creator", "Producer"),
}
# The page sets the font; a style element inside an inline SVG would apply to the whole page.
_NOT_FOR_PAGES = re.compile(
    r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style[^>]*>.*?</style>\s*</defs>"
    r"| font-family: [^;\"]*;| transform=\"rotate\(-0 [^\"]*\"",
    re.DOTALL,
)
_OPENING = re.compile(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>')


@contextmanager
def drawing(*, salt: str, fonttype: str = "path") -> Iterator[None]:
    """Draw with fixed settings, ignoring any matplotlibrc, without warnings on missing glyphs."""
    # `salt` makes the ids in an SVG reproducible and unique to a figure. The font type `path` draws
    # the text of an SVG as outlines, without a font; `none` keeps text.
    with warnings.catch_warnings(), mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "svg.hashsalt": f"biphasic-{salt}",
                "svg.fonttype": fonttype,
                "pdf.fonttype": 42,  # TrueType, as publishers require
                "text.parse_math": False,  # names may contain dollar signs
            }
        )
        # The built-in font may lack the script of a label; it is drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def to_bytes(
    figure: Figure, ending: str, *, name: str = "", fonttype: str = "path", dpi: int = _DPI
) -> bytes:
    """Render a figure as PNG, SVG or PDF; `name` makes the ids of an SVG unique."""
    buffer = io.BytesIO()
    options: dict[str, Any] = {"dpi": dpi} if ending == "png" else {}
    metadata = dict.fromkeys(_METADATA[ending])  # no dates and versions
    with drawing(salt=name or ending, fonttype=fonttype):
        figure.savefig(buffer, format=ending, metadata=metadata, **options)
    return buffer.getvalue()


def to_svg(figure: Figure, *, name: str, fonttype: str = "path") -> str:
    """Render a figure as a stand-alone SVG."""
    return to_bytes(figure, "svg", name=name, fonttype=fonttype).decode()


def page_svg(figure: Figure, *, name: str, alt: str) -> str:
    """Render a figure as an SVG element for a page, with text as text and the page's colours."""
    # The palette's light colours become CSS variables. `name` is the prefix of its ids, unique on a
    # page.
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
