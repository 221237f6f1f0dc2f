"""How long a study takes on a simulated cluster, against the least that any schedule could take.

The real scheduler runs the jobs of the reference study in virtual time: devices compute at a given
rate, jobs fail, and nodes are lost. See README.md beside this file.
"""

from __future__ import annotations

import heapq
import itertools
import random
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from harness import command_line, write_records
from scheduling import reference_work

from biphasic.execution.job import Failure, WorkItem, longest_paths
from biphasic.execution.scheduler import (
    Clock,
    Event,
    JobFailedError,
    RetryPolicy,
    Scheduler,
    WorkOutcome,
)

HOUR = 3600.0
LIMIT = 0.05
"""Of the time over the bound."""


@dataclass(frozen=True)
class Cluster:
    """Machines and their faults.

    Attributes:
        num_nodes: Machines.
        node_slots: Devices of each.
        rate: FLOP/s of a device.
        start_seconds: Time that a job takes before its first step.
        failure_share: Probability that a try of a job fails, at any time of it.
        loss_seconds: Mean time from one loss of a node to the next; 0 for no losses.
        repair_seconds: Time until a lost node is back.
    """

    num_nodes: int
    node_slots: int = 8
    rate: float = 1e14
    start_seconds: float = 60.0
    failure_share: float = 0.0
    loss_seconds: float = 0.0
    repair_seconds: float = HOUR


@dataclass(frozen=True, eq=False)
class Run:
    """A job on devices: how many of each node, and since when."""

    item: WorkItem
    nodes: Mapping[int, int]
    began: float
    future: Future[None]


class SimulatedCluster(Clock):
    """Executor and clock of a scheduler, in virtual time.

    Jobs take devices strictly in the order in which they were submitted, on one node or on whole
    nodes. What a job has saved is not computed again. Jobs of a lost node go back to the front of
    the queue, as batch systems do it.
    """

    listen_seconds = 60.0  # nobody writes requests

    def __init__(
        self, cluster: Cluster, items: Iterable[WorkItem], parts: Mapping[str, int], *, seed: int
    ) -> None:
        """Prepare.

        Args:
            cluster: Machines and their faults.
            items: The jobs.
            parts: How often each job saves its progress, its end included.
            seed: Of the faults.
        """
        self.cluster, self._parts = cluster, parts
        self.items = {item.id: self._known(item) for item in items}
        self.finished: set[str] = set()
        self.tries: Counter[str] = Counter()
        self.lost_flops: dict[str, float] = dict.fromkeys(self.items, 0.0)
        self.num_losses = 0
        self._saved: Counter[str] = Counter()
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._queue: deque[tuple[WorkItem, Future[None]]] = deque()
        self._running: dict[str, Run] = {}
        self._free = dict.fromkeys(range(cluster.num_nodes), cluster.node_slots)
        self._lost_since: dict[int, float] = {}
        self._repaired_seconds = 0.0
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = itertools.count()
        if cluster.loss_seconds:
            self._plan_loss()

    @property
    def num_slots(self) -> int:
        """Return the number of devices, lost ones included."""
        return self.cluster.num_nodes * self.cluster.node_slots

    def submit(self, job_id: str) -> Future[None]:
        assert job_id not in self.finished, f"{job_id} runs again after its success"
        future: Future[None] = Future()
        self._queue.append((self.items[job_id], future))
        self._dispatch()
        return future

    def now(self) -> float:
        return self._now

    def wait(self, events: SimpleQueue[Event], seconds: float) -> Event:
        until = self._now + seconds
        while events.empty() and self._events and self._events[0][0] <= until:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        if events.empty():
            self._now = until
            raise Empty
        return events.get_nowait()

    def least_seconds(self, *, with_losses: bool = True) -> tuple[float, float]:
        """Return two lower bounds of the time from the first job to the end of the last.

        The seconds of a job are its operations, divided by the rate of its devices.

        Args:
            with_losses: Count operations that were computed again, for a schedule with the same
                faults.

        Returns:
            The longest path of dependent jobs; and the device-seconds of all jobs, with those of
            lost nodes, divided by the number of devices.
        """
        timed = [
            replace(item, cost=self._seconds(item, item.cost + with_losses * lost))
            for item, lost in zip(self.items.values(), self.lost_flops.values(), strict=True)
        ]
        device_seconds = sum(item.cost * item.num_slots for item in timed)
        lost_seconds = self._repaired_seconds + sum(
            self._now - since for since in self._lost_since.values()
        )
        device_seconds += with_losses * lost_seconds * self.cluster.node_slots
        return max(longest_paths(timed).values()), device_seconds / self.num_slots

    def _known(self, item: WorkItem) -> WorkItem:
        """Return a job that counts as done once it has run here."""
        return replace(item, is_done=lambda: item.id in self.finished)

    def _seconds(self, item: WorkItem, flops: float) -> float:
        return flops / (self.cluster.rate * item.num_slots)

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._ties), happen))

    def _dispatch(self) -> None:
        while self._queue and (nodes := self._place(self._queue[0][0].num_slots)):
            item, future = self._queue.popleft()
            self._start(Run(item, nodes, self._now, future))

    def _place(self, needed: int) -> dict[int, int] | None:
        """Return devices by node: of the fullest node with enough, or of whole nodes."""
        size = self.cluster.node_slots
        if needed > size:
            empty = [node for node, free in self._free.items() if free == size]
            chosen = empty[: needed // size]
            return dict.fromkeys(chosen, size) if len(chosen) * size == needed else None
        room = [(free, node) for node, free in self._free.items() if free >= needed]
        return {min(room)[1]: needed} if room else None

    def _start(self, run: Run) -> None:
        item = run.item
        self.tries[item.id] += 1
        self._running[item.id] = run
        for node, slots in run.nodes.items():
            self._free[node] -= slots
        left = item.cost * (1 - self._saved[item.id] / self._parts[item.id])
        seconds = self.cluster.start_seconds + self._seconds(item, left)
        if self._random.random() < self.cluster.failure_share:
            self._at(self._now + seconds * self._random.random(), partial(self._fail, run))
        else:
            self._at(self._now + seconds, partial(self._finish, run))

    def _finish(self, run: Run) -> None:
        if self._is_over(run):
            return
        self._end(run)
        self.finished.add(run.item.id)
        run.future.set_result(None)
        self._dispatch()

    def _fail(self, run: Run) -> None:
        if self._is_over(run):
            return
        self._end(run)
        self._keep_saved(run)
        run.future.set_exception(JobFailedError("its worker died"))
        self._dispatch()

    def _plan_loss(self) -> None:
        seconds = self._random.expovariate(1 / self.cluster.loss_seconds)
        self._at(self._now + seconds, self._lose_node)

    def _lose_node(self) -> None:
        self._plan_loss()
        if not self._free:
            return
        node = self._random.choice(sorted(self._free))
        self.num_losses += 1
        self._lost_since[node] = self._now
        hit = [run for run in self._running.values() if node in run.nodes]
        for run in hit:
            self._end(run)
            self._keep_saved(run)
        del self._free[node]
        self._at(self._now + self.cluster.repair_seconds, partial(self._repair, node))
        self._queue.extendleft((run.item, run.future) for run in reversed(hit))
        self._dispatch()

    def _repair(self, node: int) -> None:
        self._repaired_seconds += self._now - self._lost_since.pop(node)
        self._free[node] = self.cluster.node_slots
        self._dispatch()

    def _is_over(self, run: Run) -> bool:
        """Return whether a job left these devices before, with a lost node."""
        return self._running.get(run.item.id) is not run

    def _end(self, run: Run) -> None:
        del self._running[run.item.id]
        for node, slots in run.nodes.items():
            self._free[node] += slots

    def _keep_saved(self, run: Run) -> None:
        """Count the parts that an interrupted job has saved, and the operations that it lost."""
        item, part = run.item, run.item.cost / self._parts[run.item.id]
        seconds = max(self._now - run.began - self.cluster.start_seconds, 0.0)
        flops = seconds * self.cluster.rate * item.num_slots
        num_parts = int(flops / part)
        self._saved[item.id] += num_parts
        self.lost_flops[item.id] += flops - num_parts * part


class _NoDisplay:
    """A watcher that shows nothing."""

    def started(self, item: WorkItem) -> None: ...
    def ended(self, item: WorkItem, failure: Failure | None, *, elsewhere: bool) -> None: ...
    def delayed(self, item: WorkItem, error: BaseException) -> None: ...
    def revived(self, item: WorkItem) -> None: ...
    def tick(self) -> None: ...


def run_on(cluster: SimulatedCluster) -> WorkOutcome:
    """Run a cluster's jobs with the real scheduler and its real retries; nothing is written."""
    return Scheduler(
        cluster.items.values(),
        cluster,
        policy=RetryPolicy(),
        watcher=_NoDisplay(),
        save=lambda _job: None,
        clock=cluster,
    ).run()


def simulate(cluster: Cluster, *, processes: int, seed: int) -> dict[str, Any]:
    """Run the reference study on a cluster, and compare it with the bounds."""
    with tempfile.TemporaryDirectory() as folder:
        work = reference_work(Path(folder), overrides=[f"compute.processes={processes}"])
    every = work.plan.study.config.checkpoint_every
    parts = {group.id: len(group.grid) for group in work.plan.groups}
    parts |= {part.id: max(-(-part.steps // every), 1) for part in work.plan.segments}
    items = [replace(item, make=lambda: None) for item in work.items]
    simulated = SimulatedCluster(cluster, items, parts, seed=seed)
    outcome = run_on(simulated)
    path, share = simulated.least_seconds()
    path_alone, share_alone = simulated.least_seconds(with_losses=False)
    return {
        "devices": simulated.num_slots,
        "rate": cluster.rate,
        "processes": processes,
        "failure_share": cluster.failure_share,
        "loss_seconds": cluster.loss_seconds,
        "seed": seed,
        "jobs": len(items),
        "finished": len(simulated.finished),
        "failed": len(outcome.failures),
        "tries": simulated.tries.total(),
        "lost_nodes": simulated.num_losses,
        "hours": simulated.now() / HOUR,
        "path_hours": path / HOUR,
        "share_hours": share / HOUR,
        "path_hours_without_faults": path_alone / HOUR,
        "share_hours_without_faults": share_alone / HOUR,
        "over": simulated.now() / max(path, share) - 1,
    }


def line_of(record: Mapping[str, Any]) -> str:
    """Describe a simulation."""
    faults = f"{record['lost_nodes']} nodes lost, {record['tries'] - record['jobs']} jobs run again"
    return (
        f"{record['devices']} devices, {record['processes']} per training, {faults}: "
        f"{record['hours']:.1f} h; longest path {record['path_hours']:.1f} h, "
        f"work {record['share_hours']:.1f} h: {record['over']:+.1%}, "
        f"{'within the limit' if record['over'] <= LIMIT else 'OVER THE LIMIT'}"
    )


def main() -> None:
    """Simulate the reference study with and without faults."""
    parser = command_line(__doc__, "simulation")
    parser.add_argument("--nodes", type=int, default=24, help="of 8 devices each")
    parser.add_argument("--rate", type=float, default=1e14, help="FLOP/s of a device")
    parser.add_argument("--seeds", type=int, default=3, help="simulations with faults")
    chosen = parser.parse_args()
    whole = Cluster(chosen.nodes, rate=chosen.rate)
    faulty = replace(whole, failure_share=0.01, loss_seconds=HOUR)
    cases = [(whole, processes, 0) for processes in (1, 8, 8 * chosen.nodes)]
    cases += [(faulty, 8, seed) for seed in range(chosen.seeds)]
    records = []
    for cluster, processes, seed in cases:
        records.append(simulate(cluster, processes=processes, seed=seed))
        print(line_of(records[-1]), flush=True)
    write_records(chosen.json, records)


if __name__ == "__main__":
    main()
