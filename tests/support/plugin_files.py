"""Files of plugins that tests name."""

from __future__ import annotations

import mailbox
import re
from email.message import EmailMessage
from pathlib import Path

from biphasic import plugin_code

_DOCS = Path(__file__).parents[2] / "docs"
PAGE = (_DOCS / "plugins.md").read_text("utf-8")
"""The page of plugins."""
_TUTORIAL = _DOCS / "tutorials/new-objective.md"
STRIDE = _TUTORIAL.read_text("utf-8").partition("%%writefile stride.py\n")[2].partition("```")[0]
"""The objective that tutorial 5 writes."""


def page_code(name: str) -> str:
    """Return the example of the page that defines a class."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    [block] = (block for block in blocks if f"\nclass {name}(" in block)
    return block


def write_plugin(path: Path, code: str, *edits: tuple[str, str]) -> Path:
    """Write code with edits of its text."""
    for old, new in edits:
        assert old in code, old
        code = code.replace(old, new)
    path.write_text(code, encoding="utf-8")
    return path


def write_stride(folder: Path, *edits: tuple[str, str]) -> Path:
    """Write the objective `Stride`, with edits of its text."""
    return write_plugin(folder / "stride.py", STRIDE, *edits)


def forget_plugins() -> None:
    """Forget all code of plugins, as a process that starts has none."""
    plugin_code._sources.clear()
    plugin_code._stores.clear()
    plugin_code.module_of.cache_clear()


def write_mailbox(path: Path) -> None:
    """Write eight messages, which the page's plugin `Mailbox` reads."""
    box = mailbox.mbox(path)
    for number in range(8):
        message = EmailMessage()
        message["subject"] = f"message {number}"
        message.set_content(f"the array of {number} rows holds tokens and their weights")
        box.add(message)
    box.close()
