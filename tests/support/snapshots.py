"""What commands print, as files in `tests/snapshots`; `make snapshots` writes them again."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "snapshots"

_SETTLED = (
    (re.compile(r"[0-9a-f]{12,}"), "HASH"),
    (re.compile(r"\d[\d,.]*(?= ?(?:ms|s|kB|MB|GB|B)\b| tokens/s)"), "N"),
    (re.compile(r"N [kMG]?B/s"), "N B/s"),  # the unit depends on the machine
    (re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]"), ""),
)


def compare(name: str, text: str, place: Path, *, is_made: bool = False) -> None:
    """Compare with the snapshot of this name, without hashes, times, sizes and the folder.

    With `is_made`, all numbers come from made records, and only the folder is left out.
    """
    text = re.sub(r"[ \t]+$", "", text.replace(str(place), "PLACE"), flags=re.MULTILINE)
    for pattern, shown in () if is_made else _SETTLED:
        text = pattern.sub(shown, text)
    path = FOLDER / f"{name}.txt"
    if os.environ.get("BIPHASIC_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8") if path.is_file() else ""
    assert text == kept, f"{path.name}: read the difference; `make snapshots` writes it again"


def printed(words: object, ended: tuple[int, str, str]) -> str:
    """Return a command and what it printed."""
    code, out, err = ended
    parts = [f"$ biphasic {words}", out.rstrip("\n")]
    if err:
        parts += ["--- standard error", err.rstrip("\n")]
    if code:
        parts.append(f"--- exit code {code}")
    return "\n".join(part for part in parts if part) + "\n"
