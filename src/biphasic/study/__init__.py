"""Studies, from a study file to its report: file names, and templates of what commands print."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

EXAMPLE_TOKENS = 256  # Assumed mean tokens of a fine-tuning example.
RESOLVED = "config.json"  # File with a study's settings, in its folder.


def lines_of(template: str, **values: Any) -> list[str]:
    """Return the lines of a template, which computes nothing, with values by name."""
    text = _environment().get_template(f"{template}.j2").render(**values)
    return text.removesuffix("\n").split("\n")


@cache
def _environment() -> Environment:
    import jinja2  # noqa: PLC0415 - most commands print none of these

    from biphasic import amounts  # noqa: PLC0415
    from biphasic.analysis.text import listing  # noqa: PLC0415

    environment = jinja2.Environment(  # noqa: S701 - a terminal has no markup
        loader=jinja2.PackageLoader("biphasic.study"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # `f` is Python's format of a number or a text, such as `{{ steps | f(">9,") }}`.
    words = {name: each for name, each in vars(amounts).items() if callable(each)}
    environment.filters.update(words, f=format, listing=listing)
    return environment
