"""Keep freed tensor memory in the process, within a bound.

By default glibc maps every large tensor afresh and unmaps it when freed, so training causes page
faults in each operation. Where page faults are expensive, the same step ran at 1,500-1,900 tokens/s
by default and at 8,900 with freed memory kept. But kept memory alone grew to 16 GB in half an hour
of changing batch shapes. :func:`tune_allocator` therefore keeps freed memory, and
:func:`release_excess` bounds it, further where memory is short: two jobs that each kept 4 GB unused
on a machine with 24 GB made it swap its files in and out for half an hour.
"""

from __future__ import annotations

import ctypes
import math
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

DEFAULT_FLOOR_BYTES = 2 * 2**30  # private memory below which nothing is released

SETTLING_CALLS = 16  # calls after a release during which the memory need is measured

HEADROOM = 1.5  # allowed memory, as a multiple of the need


@cache
def tune_allocator() -> tuple[str, ...]:
    """Make glibc serve large tensors from its heap and keep freed memory; return the settings."""
    # To be called at process start, before the first large tensor; later calls change nothing. With
    # another C library than glibc, or a preloaded allocator, nothing is set.
    if _glibc_version() is None or _preloaded_allocator():
        return ()
    options = {
        # Not M_MMAP_THRESHOLD: glibc before 2.35 refuses values above 32 MiB.
        "M_MMAP_MAX": (_M_MMAP_MAX, 0),
        "M_TRIM_THRESHOLD": (_M_TRIM_THRESHOLD, _INT_MAX),
        # Aligned allocation leaves small fragments beside each tensor. Outside the fast bins they
        # merge with their neighbours; otherwise they split the heap ever finer.
        "M_MXFAST": (_M_MXFAST, 0),
    }
    libc = ctypes.CDLL(None)
    return tuple(
        f"{name}={value}" for name, (code, value) in options.items() if libc.mallopt(code, value)
    )


def release_excess() -> int:
    """Return memory to the system if this process holds far more than it uses: bytes, usually 0."""
    # To be called after every training step: it costs microseconds unless it releases. It does
    # nothing before `tune_allocator`, or if that set nothing. Values never change.
    bound = _process_bound()
    return 0 if bound is None else bound.check()


@dataclass
class ResidentBound:
    """Releases memory that exceeds a floor and 1.5 times the measured need, or what is free."""

    # A fixed bound below the real need would release at every step and be slower than no tuning.
    # The need is therefore measured: the most memory seen in the first calls after a release, when
    # little unused memory has accumulated. Releases are at least ``settling_calls`` calls apart,
    # and memory stays near the larger of the floor and ``HEADROOM`` times the need. It also
    # releases if it holds more beyond the need than the machine has free.

    read_bytes: Callable[[], int]  # memory that this process holds
    release: Callable[[], None]
    free_bytes: Callable[[], float] = lambda: math.inf  # on the machine
    floor_bytes: int = DEFAULT_FLOOR_BYTES
    settling_calls: int = SETTLING_CALLS
    calls: int = 0
    calls_to_settle: int = 0
    need_bytes: int = 0

    @property
    def limit_bytes(self) -> int:
        """Memory above which the next call releases."""
        return max(self.floor_bytes, int(HEADROOM * self.need_bytes))

    def check(self) -> int:
        """Release memory if over the limit; return the bytes released."""
        held = self.read_bytes()
        if self.calls_to_settle > 0:
            self.calls_to_settle -= 1
            self.need_bytes = max(self.need_bytes, held)
            return 0
        # Asking what is free takes half a millisecond.
        self.calls = (self.calls + 1) % self.settling_calls
        is_short = self.calls == 0 and held - self.need_bytes > self.free_bytes()
        if held <= self.limit_bytes and not is_short:
            return 0
        self.release()
        left = self.read_bytes()
        self.need_bytes = left
        self.calls_to_settle = self.settling_calls
        return max(0, held - left)


def private_bytes() -> int:
    """Resident memory of this process without file-backed pages such as libraries and corpora."""
    # Linux only, where /proc reports it without a library.
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    resident_pages, shared_pages = int(fields[1]), int(fields[2])
    return (resident_pages - shared_pages) * os.sysconf("SC_PAGE_SIZE")


@cache
def _process_bound() -> ResidentBound | None:
    if not tune_allocator():
        return None
    from biphasic.model.loading.footprint import free_memory  # noqa: PLC0415 - imports torch

    libc = ctypes.CDLL(None)
    return ResidentBound(
        read_bytes=private_bytes, release=lambda: libc.malloc_trim(0), free_bytes=free_memory
    )


def _glibc_version() -> str | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # musl does not have this name
        return None


def _preloaded_allocator() -> bool:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    libraries = {line.rsplit("/", 1)[-1] for line in maps.splitlines() if "/" in line}
    return any(name in library for library in libraries for name in _OTHER_ALLOCATORS)
