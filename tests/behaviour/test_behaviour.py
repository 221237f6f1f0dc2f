"""Every command as a black box: exit code, files, numbers, and what its JSON says.

`BIPHASIC_RECORD=1 pytest tests/behaviour` records the scenarios again; read the difference.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from behaviour_files import FILES
from mini_study import run_command

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SCENARIOS: dict[str, Any] = yaml.safe_load((HERE / "scenarios.yaml").read_text("utf-8"))
RECORDED = HERE / "recorded.json"
RELATIVE = 1e-3
"""Between processors; losses of a dozen steps in fp32 differ by 1e-5."""

_HASH = re.compile(r"[0-9a-f]{12,}|(?<=tfevents\.).*")
_NUMBER = re.compile(r"(?<![\w.-])-?\d+\.\d+(?![\w.])")
_OF_THE_MACHINE = re.compile(
    r"seconds|hours|time|date|speed|flops_per|host|device|version|threads|processor|memory|bytes"
    r"|path|folder|root|rows_fit|environment|commit|code|products"
)
_TIMES = re.compile(r"\d+(\.\d+)? ?(s|min|h|hours?|minutes?|seconds?|ms|MB|GB|kB|MiB|GiB)\b")


def run_scenario(name: str, place: Path) -> list[dict[str, Any]]:
    """Run the commands of a scenario in a folder; return what each of them did."""
    scenario = SCENARIOS[name]
    for files in scenario["files"]:
        FILES[files](place)
    return [_run(step, place) for step in scenario["steps"]]


def _run(step: str, place: Path) -> dict[str, Any]:
    before = _tree(place)
    arguments = [_with_state(word, place) for word in shlex.split(step)]
    setup = f"import os; os.chdir({str(place)!r})"
    ended = run_command(*arguments, setup=setup)
    assert "Traceback" not in ended.stderr, f"biphasic {step}\n{ended.stderr}"
    after = _tree(place)
    done: dict[str, Any] = {"command": step, "exit": ended.returncode}
    done["writes"] = _counted(after - before)
    done["deletes"] = _counted(before - after)
    if "--json" in step and ended.returncode == 0:
        done["json"] = dict(_flat(json.loads(ended.stdout)))
    else:
        done["numbers"] = _numbers(ended.stdout)
    if ended.returncode:
        done["error lines"] = len(ended.stderr.strip().splitlines())
    tables = [
        path for path in ("root/tiny/report/table.csv", "sorted.csv") if path in after - before
    ]
    for path in tables:
        done[path] = _table((place / path).read_text("utf-8"))
    return done


def _with_state(word: str, place: Path) -> str:
    """Return a word of a command, STATE replaced by the name of the newest state."""
    if not word.endswith("/STATE"):
        return word
    folder = place / word.removesuffix("STATE")
    [name] = [path.name for path in folder.iterdir()]
    return f"{word.removesuffix('STATE')}{name}"


def _tree(place: Path) -> Counter[str]:
    """Count files by their path, with hashes as #; of items of a store, their folders alone."""
    paths: set[str] = set()
    for path in place.rglob("*"):
        relative = path.relative_to(place)
        if "store" in relative.parts:
            relative = Path(*relative.parts[: relative.parts.index("store") + 3])
        elif path.is_dir():
            continue
        if relative.parts[-1] not in {"leases", "store"}:
            paths.add(relative.as_posix())
    return Counter(_HASH.sub("#", path) for path in paths if "/leases/" not in path)


def _counted(paths: Counter[str]) -> dict[str, int]:
    return dict(sorted(paths.items()))


def _numbers(text: str) -> list[float]:
    """Return the numbers with a decimal point in a text, except times and sizes."""
    return [float(number) for number in _NUMBER.findall(_TIMES.sub("", text))]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a JSON value by path; those of the machine and hashes by type alone."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{_HASH.sub('#', key)}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{number}]")
    elif _OF_THE_MACHINE.search(path) or (isinstance(value, str) and _is_named(value)):
        yield path, f"<{type(value).__name__}>"
    else:
        yield path, value


def _is_named(text: str) -> bool:
    return bool(_HASH.search(text)) or "/" in text or len(text) > 40


def _table(text: str) -> list[list[float | str]]:
    rows = csv.reader(io.StringIO(text))
    return [[float(cell) if _NUMBER.fullmatch(cell) else cell for cell in row] for row in rows]


def differences(recorded: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield how what a command does now differs from what was recorded."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in sorted({*recorded, *now}):
            yield from differences(recorded.get(key), now.get(key), f"{path}/{key}")
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for number, pair in enumerate(zip(recorded, now, strict=True)):
            yield from differences(*pair, f"{path}/{number}")
    elif isinstance(recorded, float) and isinstance(now, float | int):
        if now != pytest.approx(recorded, rel=RELATIVE, abs=RELATIVE):
            yield f"{path}: {recorded} -> {now}"
    elif recorded != now:
        yield f"{path}: {recorded!r} -> {now!r}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_commands_do_what_was_recorded(name, tmp_path, warm):
    done = run_scenario(name, tmp_path)
    recorded = json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {}
    if os.environ.get("BIPHASIC_RECORD"):
        text = json.dumps({**recorded, name: done}, indent=1, ensure_ascii=False)
        RECORDED.write_text(text + "\n", "utf-8")
        return
    steps = [step["command"] for step in recorded[name]]
    assert [step["command"] for step in done] == steps
    problems = [
        f"biphasic {before['command']}{line}"
        for before, now in zip(recorded[name], done, strict=True)
        for line in differences(before, now)
    ]
    assert not problems, "\n".join(problems)
