"""Keep freed tensor memory in the process, within a bound.

Why: by default glibc maps every large tensor afresh and unmaps it when freed, so training pays
page faults for each operation. Where faults are dear the same step ran at 1,500-1,900 tokens/s as
it is and at 8,900 with freed memory kept, but kept memory alone grew to 16 GB in half an hour of
changing batch shapes. Hence two halves: :func:`tune_allocator` keeps, :func:`release_excess`
bounds.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# From glibc's malloc.h; part of its stable interface.
_M_MXFAST = 1
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_INT_MAX = 2**31 - 1

_OTHER_ALLOCATORS = ("jemalloc", "mimalloc", "tbbmalloc", "tcmalloc")

DEFAULT_FLOOR_BYTES = 2 * 2**30
"""Private memory that is never worth giving back: below it nothing is released."""

SETTLING_CALLS = 16
"""Calls after a release during which the process shows how much it needs."""

HEADROOM = 1.5
"""Memory allowed, as a multiple of the need."""


@dataclass(frozen=True)
class AllocatorReport:
    """What :func:`tune_allocator` changed, for the provenance of a run."""

    allocator: str
    settings: tuple[str, ...]


@cache
def tune_allocator() -> AllocatorReport | None:
    """Tell glibc to serve large tensors from its heap and to keep what is freed.

    Call it once at process start, before the first large tensor; further calls change nothing.

    Returns:
        What was set, or None where nothing was: another C library than glibc, or an allocator
        that somebody preloaded on purpose.
    """
    version = _glibc_version()
    if version is None or _preloaded_allocator():
        return None
    wanted = {
        # Not M_MMAP_THRESHOLD: before glibc 2.35 that refuses values above 32 MiB.
        "M_MMAP_MAX": (_M_MMAP_MAX, 0),
        "M_TRIM_THRESHOLD": (_M_TRIM_THRESHOLD, _INT_MAX),
        # Aligned allocation leaves crumbs beside each tensor; out of the fast bins they merge
        # with their neighbours, else they split the heap ever finer.
        "M_MXFAST": (_M_MXFAST, 0),
    }
    libc = ctypes.CDLL(None)
    done = tuple(
        f"{name}={value}" for name, (code, value) in wanted.items() if libc.mallopt(code, value)
    )
    return AllocatorReport(allocator=version, settings=done) if done else None


def release_excess() -> int:
    """Give memory back to the system if this process holds far more than it uses.

    Call it after every training step: it costs microseconds unless it releases. It does nothing
    before :func:`tune_allocator` and where that returned None. Values never change.

    Returns:
        Bytes given back, mostly 0.
    """
    bound = _process_bound()
    return 0 if bound is None else bound.check()


class ResidentBound:
    """Releases memory when it exceeds both a floor and 1.5 times the seen need.

    A fixed bound would release at every step once the work itself needs more than that, and then
    be slower than no tuning at all. So the need is measured: it is the most memory seen in the
    first calls after a release, when little unused memory can have gathered. Releases are
    therefore at least ``settling_calls`` calls apart, and memory stays near the larger of the floor
    and ``HEADROOM`` times the need.
    """

    def __init__(
        self,
        *,
        read_bytes: Callable[[], int],
        release: Callable[[], None],
        floor_bytes: int = DEFAULT_FLOOR_BYTES,
        settling_calls: int = SETTLING_CALLS,
    ) -> None:
        """Watch the memory that ``read_bytes`` reports and free it with ``release``."""
        self._read_bytes = read_bytes
        self._release = release
        self._floor_bytes = floor_bytes
        self._settling_calls = settling_calls
        self._calls_to_settle = 0
        self._need_bytes = 0

    @property
    def limit_bytes(self) -> int:
        """Memory above which the next call releases."""
        return max(self._floor_bytes, int(HEADROOM * self._need_bytes))

    def check(self) -> int:
        """Release if over the limit; returns the bytes given back."""
        held = self._read_bytes()
        if self._calls_to_settle > 0:
            self._calls_to_settle -= 1
            self._need_bytes = max(self._need_bytes, held)
            return 0
        if held <= self.limit_bytes:
            return 0
        self._release()
        left = self._read_bytes()
        self._need_bytes = left
        self._calls_to_settle = self._settling_calls
        return max(0, held - left)


def private_bytes() -> int:
    """Resident memory of this process without file-backed pages such as libraries and corpora.

    Linux only, where /proc says it without a library.
    """
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    resident_pages, shared_pages = int(fields[1]), int(fields[2])
    return (resident_pages - shared_pages) * os.sysconf("SC_PAGE_SIZE")


@cache
def _process_bound() -> ResidentBound | None:
    if tune_allocator() is None:
        return None
    libc = ctypes.CDLL(None)
    return ResidentBound(read_bytes=private_bytes, release=lambda: libc.malloc_trim(0))


def _glibc_version() -> str | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # musl knows no such name
        return None


def _preloaded_allocator() -> bool:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    libraries = {line.rsplit("/", 1)[-1] for line in maps.splitlines() if "/" in line}
    return any(name in library for library in libraries for name in _OTHER_ALLOCATORS)
