"""Files of plugins that tests name."""

from __future__ import annotations

from pathlib import Path

from biphasic import plugins

_TUTORIAL = Path(__file__).parents[1] / "docs/tutorials/new-objective.md"
STRIDE = _TUTORIAL.read_text("utf-8").partition("%%writefile stride.py\n")[2].partition("```")[0]
"""The objective that tutorial 5 writes."""


def write_stride(folder: Path, *edits: tuple[str, str]) -> Path:
    """Write the objective `Stride`, with edits of its text."""
    text = STRIDE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = folder / "stride.py"
    path.write_text(text, encoding="utf-8")
    return path


def forget_plugins() -> None:
    """Forget all code of plugins, as a process that starts has none."""
    plugins._sources.clear()
    plugins._stores.clear()
    plugins._module.cache_clear()
