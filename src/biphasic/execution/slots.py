"""What a job runs on: slots, which are shares of the machine, and nodes of a cluster's block."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from biphasic.errors import ConfigError
from biphasic.model.compute.device import chosen_device, visible_devices

MOST_PER_CORE = 8  # limit of jobs and threads per core, against overload by mistake
_NODES = "BIPHASIC_NODES"


@dataclass(frozen=True)
class Slot:
    """A share of the machine."""

    index: int
    # The GPU, as in `CUDA_VISIBLE_DEVICES`; None for CPU cores; empty to hide GPUs when the CPU was
    # chosen.
    device: str | None = None


def devices_environment(slots: Sequence[Slot]) -> dict[str, str]:
    """Return the environment variables that confine a process to the devices of slots."""
    devices = dict.fromkeys(slot.device for slot in slots if slot.device is not None)
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}


def local_slots(
    *, num_workers: int | None = None, num_threads: int = 1, jobs_per_gpu: int = 1
) -> tuple[Slot, ...]:
    """Return this machine's slots: its GPUs if it has some (jobs must fit), else its cores."""
    check_cores(num_workers=1 if num_workers is None else num_workers, num_threads=num_threads)
    devices = visible_devices()
    if not devices:
        if jobs_per_gpu != 1:
            raise ConfigError(
                f"--per-gpu: there is no GPU for {jobs_per_gpu} jobs to share; give --workers, the "
                "number of jobs that run in parallel"
            )
        count = num_workers or max((os.cpu_count() or 1) // num_threads, 1)
        hidden = None if chosen_device() is None else ""
        return tuple(Slot(index, hidden) for index in range(count))
    # One job on each GPU before a second one on any.
    room = [device for _ in range(jobs_per_gpu) for device in devices]
    if num_workers is not None and num_workers > len(room):
        raise ConfigError(
            f"{num_workers} workers: there are {len(devices)} GPUs with "
            f"{jobs_per_gpu} jobs each; increase --per-gpu or decrease --workers"
        )
    return tuple(Slot(index, device) for index, device in enumerate(room[:num_workers]))


def check_cores(*, num_workers: int = 1, num_threads: int = 1) -> None:
    """Refuse numbers of workers and threads that would overload this machine."""
    most = MOST_PER_CORE * (os.cpu_count() or 1)
    for name, count in (("workers", num_workers), ("threads", num_threads)):
        if not 1 <= count <= most:
            raise ConfigError(f"{name}: expected 1 to {most} on this machine, not {count}")
    if num_workers * num_threads > most:
        raise ConfigError(
            f"{num_workers} workers with {num_threads} threads each: expected at most {most} "
            "threads in total on this machine"
        )


@dataclass(frozen=True)
class Nodes:
    """Nodes that a process group is spread over."""

    count: int = 1  # their number
    launch: tuple[str, ...] = ()  # command that starts one process on each of them
    folder: str | None = None  # folder on a file system that they share

    @classmethod
    def from_environment(cls) -> Nodes:
        """Return the nodes of this block; this machine alone outside of blocks of several."""
        text = os.environ.get(_NODES)
        return cls(**json.loads(text)) if text else cls()

    def environment(self) -> dict[str, str]:
        """Return the variable that passes them to a job."""
        return {} if self.count == 1 else {_NODES: json.dumps(asdict(self))}
