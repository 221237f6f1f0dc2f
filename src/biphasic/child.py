"""A child process with pipes, started when it is needed, and not again once it was stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from biphasic.errors import StudyError

# Environment variable: where the ranks of a group find each other. A file, if they are on one
# machine; else the address and port of a `TCPStore`. Neither unpickles anything.
GROUP_STORE = "BIPHASIC_GROUP_STORE"
PYTHON = (sys.executable, "-P")  # no file of the working folder stands for a module


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the block, for the processes that it starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def messages(
    lines: Iterable[bytes], key: str, *, other: Callable[[bytes], object], is_shared: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that begin with a key; `other` gets what else was printed.

    With `is_shared`, several processes write: it also gets lines that they broke into pieces.
    """
    # Launchers, `sitecustomize` and imports print before a process of ours can redirect its output.
    mark = f'{{"{key}": '.encode()
    for line in lines:
        if not line.endswith(b"\n"):  # the process ended while it wrote
            other(line)
            continue
        text, separator, rest = line.partition(mark)
        if text:
            other(text)
        if not separator:
            continue
        try:
            message = json.loads(separator + rest)
        except ValueError:
            if not is_shared:  # it may be the last message, for which the caller would wait
                raise StudyError(f"a process wrote a damaged message: {line!r:.80}") from None
            other(separator + rest)
        else:
            yield message


class Child:
    """A process that reads from and writes to its parent; other output goes to a log."""

    def __init__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        """Prepare; `environment` has variables beside those of this process."""
        self._command, self._log, self._environment = command, log, environment
        self.is_stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        # Prevents a process from starting after the stop request.
        self._lock = threading.Lock()

    def started(self) -> tuple[IO[bytes], IO[bytes]] | None:
        """Return its input and output, started again if it has died; None once it was stopped."""
        with self._lock:
            if self.is_stopped:
                return None
            if self._process is not None and self._process.poll() is not None:
                self.close()
                self._process = None
            if self._process is None:
                with self._log.open("ab") as log:
                    self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                        self._command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        env={**os.environ, **self._environment},
                    )
            return cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)

    def log(self, text: bytes) -> None:
        """Add to its log."""
        with self._log.open("ab") as log:
            log.write(text)

    def ask_to_stop(self) -> None:
        """Close its input, at which it saves its progress and exits."""
        with self._lock:
            self.is_stopped = True
            if self._process is not None and self._process.stdin is not None:
                with suppress(BrokenPipeError, ValueError):
                    self._process.stdin.close()

    def kill(self) -> None:
        """Kill it at once."""
        with self._lock:
            self.is_stopped = True
            self.end()

    def end(self, seconds: float = 0.0) -> None:
        """Kill it, unless it exits within some seconds."""
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Close the pipes; no thread may be using them."""
        for pipe in (self._process.stdin, self._process.stdout) if self._process else ():
            with suppress(BrokenPipeError):
                if pipe:
                    pipe.close()
