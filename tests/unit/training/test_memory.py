import subprocess
import sys
import textwrap
from contextlib import ExitStack
from mmap import ACCESS_READ, mmap

import pytest

from biphasic.training import memory
from biphasic.training.memory import ResidentBound

needs_glibc = pytest.mark.skipif(
    not memory.tune_allocator(), reason="the allocator is tuned on glibc alone"
)


class FakeProcess:
    """Resident memory that a test sets and that a release brings down to what is in use."""

    def __init__(self, in_use: int) -> None:
        self.held = in_use
        self.in_use = in_use
        self.releases = 0

    def release(self) -> None:
        self.releases += 1
        self.held = self.in_use


def bounded(*, in_use: int, settling_calls: int) -> tuple[FakeProcess, ResidentBound]:
    """Return a process and its bound, with a floor of 10 bytes."""
    process = FakeProcess(in_use)
    bound = ResidentBound(
        read_bytes=lambda: process.held,
        release=process.release,
        floor_bytes=10,
        settling_calls=settling_calls,
    )
    return process, bound


def run_python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_what_exceeds_the_floor_is_released_and_counted():
    process, bound = bounded(in_use=4, settling_calls=2)
    process.held = 10
    assert bound.check() == 0
    assert process.releases == 0
    process.held = 11
    assert bound.check() == 7
    assert process.held == 4


def test_creeping_growth_stays_bounded_by_the_need():
    process, bound = bounded(in_use=20, settling_calls=4)
    highest = 0
    for _ in range(1000):
        process.held = max(process.held, 30) + 1  # 30 per step, and a leak of 1
        bound.check()
        highest = max(highest, process.held)
    # Need: 31 after the first step, 34 after the fourth; limit 51; one step beyond is seen.
    assert highest <= 52
    assert process.releases < 1000 / 15


def test_where_little_is_free_nothing_unused_is_kept():
    process, bound = bounded(in_use=20, settling_calls=1)
    free = iter([25, 15, 15, 15])
    bound.free_bytes = lambda: next(free)
    process.held = 20
    assert bound.check() == 0  # the need is unknown, and 25 are free
    assert bound.check() == 0  # releases: 20 may be unused, and 15 are free
    assert (process.releases, bound.check()) == (1, 0)  # settles at a need of 20
    process.held = 29
    assert (bound.check(), process.releases) == (0, 1)
    process.held = 29
    free = iter([8])
    assert (bound.check(), process.releases) == (9, 2)


def test_the_need_is_measured_again_after_each_release():
    process, bound = bounded(in_use=4, settling_calls=1)
    for held in (100, 100, 151):  # release, settle at 100, exceed 150
        process.held = held
        bound.check()
    assert process.releases == 2
    process.held = 8  # smaller work follows
    bound.check()
    assert bound.limit_bytes == 12  # 1.5 x 8


@needs_glibc
def test_tuned_memory_is_kept_and_then_given_back():
    kept, released, left = map(
        int,
        run_python("""
            import numpy
            from biphasic.training import memory

            assert memory.tune_allocator()
            arrays, pins = [], []
            for _ in range(300):  # small blocks between large ones, so that the heap cannot shrink
                arrays.append(numpy.ones(2**20, dtype=numpy.uint8))
                pins.append(numpy.ones(4096, dtype=numpy.uint8))
            del arrays
            kept = memory.private_bytes()
            bound = memory._process_bound()
            bound.floor_bytes = 128 * 2**20
            print(kept, memory.release_excess(), memory.private_bytes())
        """).split(),
    )
    assert kept > 300 * 2**20  # without tuning each array would be unmapped when freed
    assert released > 250 * 2**20
    assert left < 128 * 2**20


@needs_glibc
def test_large_blocks_are_reused_without_page_faults():
    faults = int(
        run_python("""
            import resource
            import numpy
            from biphasic.training import memory

            memory.tune_allocator()
            numpy.ones(64 * 2**20, dtype=numpy.uint8)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(10):
                numpy.ones(64 * 2**20, dtype=numpy.uint8)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        """)
    )
    # Mapped afresh, each block costs 32 faults with huge pages and 16,384 without.
    assert faults < 100


@needs_glibc
def test_every_setting_is_made_once():
    settings = memory.tune_allocator()
    names = [setting.split("=")[0] for setting in settings]
    assert names == ["M_MMAP_MAX", "M_TRIM_THRESHOLD", "M_MXFAST"]
    assert memory.tune_allocator() is settings


@pytest.mark.parametrize("reason", ["no glibc", "preloaded"])
def test_elsewhere_nothing_happens(tmp_path, monkeypatch, reason):
    library = tmp_path / "libjemalloc.so.2"
    library.write_bytes(b"code")
    monkeypatch.setattr(memory, "tune_allocator", memory.tune_allocator.__wrapped__)
    monkeypatch.setattr(memory, "_process_bound", memory._process_bound.__wrapped__)
    with library.open("rb") as file, ExitStack() as loaded:
        if reason == "no glibc":
            monkeypatch.setattr(sys, "platform", "darwin")
        else:
            loaded.enter_context(mmap(file.fileno(), 0, access=ACCESS_READ))
        assert memory.tune_allocator() == ()
        assert memory.release_excess() == 0
