"""Figures to bytes: the same records give the same bytes, without dates or outside settings."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.figure import Figure

_DPI = 200


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
    buffer = io.BytesIO()
    with drawing(salt="png"):
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def to_svg(figure: Figure, *, name: str, fonttype: str = "path") -> str:
    """Render a figure as a stand-alone SVG."""
    buffer = io.StringIO()
    with drawing(salt=name, fonttype=fonttype):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def to_pdf(figure: Figure) -> bytes:
    """Render a figure as PDF with its fonts inside, for print."""
    buffer = io.BytesIO()
    metadata = {"CreationDate": None, "Creator": None, "Producer": None}
    with drawing(salt="pdf"):
        figure.savefig(buffer, format="pdf", metadata=metadata)
    return buffer.getvalue()


FIGURE_FORMATS: Mapping[str, Callable[[Figure, str], bytes]] = {
    "png": lambda figure, _: to_png(figure),
    "svg": lambda figure, name: to_svg(figure, name=name).encode(),
    "pdf": lambda figure, _: to_pdf(figure),
}
"""For each ending, how a figure of some name becomes a file's bytes."""
