"""Disks that fail: at an operation, in general, or by forgetting what was not flushed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link"}
_DELETIONS = {"os.remove", "os.rmdir"}


def is_below(path: Any, root: Path) -> bool:
    """Return whether an argument of an operation is a path below a folder."""
    return isinstance(path, str | Path) and str(path).startswith(f"{root}/")


def at_operations(root: Path, act: Callable[[], None]) -> None:
    """Call `act` before each operation of this process that changes files below a folder.

    Forks of this process do so, too. An error that it raises is the operation's. Libraries that
    are not written in Python (safetensors, tokenizers, pyarrow) are not seen, but their folders
    and renames are.
    """

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and int(arguments[2] or 0) & _WRITES):
            path = arguments[0]
            if event in _DELETIONS and arguments[1] >= 0:  # `shutil.rmtree` opens its folders
                path = Path(f"/proc/self/fd/{arguments[1]}").readlink() / path
            if is_below(path, root):
                act()

    sys.addaudithook(watch)


def after_operations(root: Path, number: int, act: Callable[[], None]) -> None:
    """Call `act` at all operations of a process after the first `number`."""
    counts: dict[int, int] = {}

    def count() -> None:
        pid = os.getpid()
        counts[pid] = counts.get(pid, 0) + 1
        if counts[pid] > number:
            act()

    at_operations(root, count)


def slow(root: Path, draw: random.Random) -> None:
    """Let operations take their time."""
    at_operations(root, lambda: time.sleep(draw.random() * 0.02))


def can_mount() -> bool:
    """Return whether this process may mount file systems, as root may."""
    return os.getuid() == 0 and shutil.which("mount") is not None


@contextlib.contextmanager
def mounted(root: Path) -> Iterator[Callable[[str], None]]:
    """Put a folder on a file system of its own; yield a function that sets its mount options."""
    aside = root.with_name(f"{root.name}-aside")
    root.rename(aside)
    root.mkdir()
    _mount("-t", "tmpfs", "-o", "size=1g", "tmpfs", str(root))
    try:
        shutil.copytree(aside, root, symlinks=True, dirs_exist_ok=True)
        yield lambda options: _mount("-o", f"remount,{options}", str(root))
        shutil.rmtree(aside)
        shutil.copytree(root, aside, symlinks=True)
    finally:
        subprocess.run(["umount", str(root)], check=True)  # noqa: S607
        root.rmdir()
        aside.rename(root)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)  # noqa: S607


class Journal:
    """What a run has flushed; all else may be lost when the power fails.

    A file's content is safe once the file was flushed, a name (created, renamed) once its folder
    was. Names are lost latest first, as file systems with a journal do it. Deletions are not
    undone.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        """Note what is there: it is safe."""
        self._root, self._kept, self._lines = root, folder / "kept", folder / "journal"
        shutil.rmtree(folder, ignore_errors=True)
        self._kept.mkdir(parents=True)
        self._files = {_version(path) for path in root.rglob("*") if path.is_file()}
        self._names = {str(path) for path in root.rglob("*")}

    def watch(self) -> None:
        """Note what this process and its forks rename and flush."""

        def note_rename(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "os.rename" and is_below(arguments[0], self._root):
                source, target = map(str, arguments[:2])
                kept = self._kept / f"{os.getpid()}-{time.monotonic_ns()}"
                if os.path.isfile(target):  # noqa: PTH113 - a path of any type
                    with contextlib.suppress(FileNotFoundError):
                        os.link(target, kept)
                self._write(kind="rename", path=source, target=target, kept=str(kept))

        def flush(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_dir():
                names = [each.name for each in path.iterdir()]
                self._write(kind="folder", path=str(path), names=names)
            else:
                self._write(kind="file", version=_version(path))

        sys.addaudithook(note_rename)
        os.fsync = flush

    def _write(self, **entry: Any) -> None:
        with self._lines.open("a") as lines:
            lines.write(json.dumps(entry) + "\n")

    def lose(self, draw: random.Random) -> None:
        """Leave the folder as a power failure might, when no process works there any more."""
        entries = []
        if self._lines.is_file():
            entries = [json.loads(line) for line in self._lines.read_text().splitlines()]
        self._undo_renames(entries, draw)
        files = self._files | {tuple(e["version"]) for e in entries if e["kind"] == "file"}
        names = set(self._names)
        for entry in entries:
            if entry["kind"] == "folder":
                names |= {f"{entry['path']}/{name}" for name in entry["names"]}
            elif entry["kind"] == "rename":  # what was safe in a folder is so under its new name
                old, new = entry["path"], entry["target"]
                names |= {name.replace(old, new, 1) for name in names if name.startswith(f"{old}/")}
        for path in sorted(self._root.rglob("*"), reverse=True):
            if str(path) not in names and draw.random() < 0.3:
                _remove(path)
                continue
            if path.is_file() and _version(path) not in files and draw.random() < 0.7:
                _cut(path, draw)
            if path.name == ".lock" or path.parent.name == "leases":
                os.utime(path, (time.time() - 120,) * 2)  # machines take a while to start again

    def _undo_renames(self, entries: list[dict[str, Any]], draw: random.Random) -> None:
        """Undo some of the last renames whose folder was not flushed after them."""
        unsafe = [
            number
            for number, entry in enumerate(entries)
            if entry["kind"] == "rename"
            and not any(
                later["kind"] == "folder" and later["path"] == os.path.dirname(entry["target"])  # noqa: PTH120
                for later in entries[number:]
            )
        ]
        for number in reversed(unsafe[draw.randint(0, len(unsafe)) :]):
            source, target = Path(entries[number]["path"]), Path(entries[number]["target"])
            if target.exists() and source.parent.is_dir() and not source.exists():
                target.rename(source)
                kept = Path(entries[number]["kept"])
                if kept.is_file():
                    kept.rename(target)


def _version(path: Path | str) -> tuple[int, int, int]:
    """Identify a file's content."""
    about = os.stat(path)  # noqa: PTH116
    return about.st_ino, about.st_size, about.st_mtime_ns


def _cut(path: Path, draw: random.Random) -> None:
    """Leave a prefix of a file, or zeros, as file systems do that allocate late."""
    size = path.stat().st_size
    if draw.random() < 0.3:
        path.write_bytes(bytes(size))
    else:
        os.truncate(path, draw.randint(0, size))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
