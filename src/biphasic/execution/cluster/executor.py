"""An executor of jobs on a cluster, and a trial of its site file."""

from __future__ import annotations

import json
import math
import platform
import shutil
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from parsl.executors.high_throughput.errors import ManagerLost
from pydantic import ValidationError
from rich.console import Console

from biphasic.errors import BiphasicError
from biphasic.execution.cluster.engine import GROUPS, SINGLE, Block, Engine
from biphasic.execution.cluster.providers import cancel_blocks
from biphasic.execution.cluster.remote import (
    RUNNING,
    STOP,
    RemoteJob,
    RemoteProgress,
    describe_node,
    run_job,
)
from biphasic.execution.cluster.site import Site, check_fits, group_nodes, is_batch_id
from biphasic.execution.executor import Work
from biphasic.execution.job import ExecutorError, JobFailedError, Progress, RequeuedError
from biphasic.execution.slots import Nodes
from biphasic.execution.worker import STOP_SECONDS
from biphasic.files import write_text
from biphasic.progress import progress_bar

_LOOK_SECONDS = 1.0
_MOST_AHEAD = 8
_MOST_RESTARTS = 10
_RESTART_SECONDS = 3600.0
_QUEUE_SECONDS = 60.0  # how long blocks wait in the scheduler's queue before this is mentioned
_FOLDER = "cluster"
_BLOCKS = "blocks.json"


@dataclass
class _Running:
    """A job that was given to Parsl."""

    future: Future[None]
    request: RemoteJob
    seen: RemoteProgress | None = None


class ClusterExecutor:
    """Runs jobs on the nodes of a cluster."""

    # Parsl starts blocks (batch jobs) as there is work, keeps one process for each slot in them,
    # and passes identities of jobs. This class replaces an engine that has died, notices blocks
    # that end under their jobs, and follows the progress that jobs write into the study's folder.

    def __init__(self, work: Work, site: Site) -> None:
        """Prepare; `with` starts Parsl. Nodes share the file system of store and folder."""
        self._work, self._site, self._say = work, site, work.say
        self._run = work.folder / _FOLDER / uuid.uuid4().hex[:12]
        self._group_nodes = group_nodes(site, work.processes)
        self._running: dict[str, _Running] = {}
        # Steps that a job had left when its last try began; infinite if it reported none.
        self._steps_left: dict[str, float] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._error: ExecutorError | None = None
        self._thread = threading.Thread(target=self._attend, daemon=True)
        self._queued_since: float | None = None
        self._submissions: deque[float] = deque()
        self._restarts: deque[float] = deque(maxlen=_MOST_RESTARTS)
        self._ids: list[str] = []
        self._left: list[str] = []
        self._failed: set[tuple[str, str]] = set()

    @property
    def num_slots(self) -> int:
        """Return how many jobs to submit at once: a few more than run when all blocks run."""
        # Those wait in the interchange, from where a slot gets its next job sooner than from here.
        return self._site.num_slots + min(self._site.num_slots, _MOST_AHEAD)

    def __enter__(self) -> ClusterExecutor:
        self._cancel_leftovers()
        (self._run / RUNNING).mkdir(parents=True)
        self._engine = self._start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let running jobs save their progress, and end all blocks."""
        self._is_over.set()
        try:
            (self._run / STOP).touch()
            self._thread.join()
            end = time.monotonic() + STOP_SECONDS + 2 * _LOOK_SECONDS
            while any((self._run / RUNNING).iterdir()) and time.monotonic() < end:
                time.sleep(_LOOK_SECONDS / 5)
        finally:  # also after a second Ctrl-C
            self._retire(self._engine)
            self._engine.stop()
            self._write_blocks([])
            if self._left:
                self._say(f"cannot cancel batch jobs {', '.join(self._left)}: the next run will")

    def submit(self, job_id: str) -> Future[None]:
        """Queue a job."""
        if self._error is not None:
            raise self._error
        is_group = self._work.load_job(self._work.store, job_id).num_slots > 1
        request = RemoteJob(
            job=job_id,
            store=self._work.store,
            worker=self._work.worker,
            threads=self._site.threads,
            logs=self._work.folder / "logs",
            run=self._run,
            drain_seconds=self._site.drain_seconds,
            label=GROUPS if is_group else SINGLE,
            nodes=self._engine.group if is_group else Nodes(),
        )
        running = _Running(Future(), request)
        self._forget_progress(job_id)
        with self._lock:
            self._running[job_id] = running
            submitted = self._engine.submit(request.label, run_job, request)
        submitted.add_done_callback(partial(self._settle, running))
        return running.future

    def _start(self) -> Engine:
        return Engine(
            self._site, self._run, submissions=self._submissions, group_nodes=self._group_nodes
        )

    def _settle(self, running: _Running, submitted: Future[BiphasicError | None]) -> None:
        """Pass on the outcome of a job; called from Parsl's thread."""
        failure = submitted.exception()
        if failure is None:
            error = submitted.result()
            if isinstance(error, RequeuedError):
                error = self._at_limit(running, error)
        elif isinstance(failure, ManagerLost) and running.seen:
            error = self._lost(running.seen)
        else:  # Parsl could not run it
            error = JobFailedError(f"{type(failure).__name__}: {failure}")
        self._end(running, error)

    def _end(self, running: _Running, error: BaseException | None) -> None:
        """End a job, unless it has ended already."""
        job = running.request.job
        with self._lock:
            if self._running.get(job) is not running:
                return
            del self._running[job]
        if error is None:
            running.future.set_result(None)
        else:
            running.future.set_exception(error)

    def _attend(self) -> None:
        """Follow jobs, blocks and the engine until the end."""
        while not self._is_over.wait(_LOOK_SECONDS):
            try:
                problem = self._engine.look()
                self._follow()
                self._note_blocks()
                if trouble := self._engine.trouble():
                    self._give_up(trouble)
                elif problem and not self._is_over.is_set():
                    self._replace(problem)
            except ExecutorError as error:
                self._give_up(str(error))
            except Exception as error:  # noqa: BLE001 - a silent thread would hang the study
                self._give_up(f"{type(error).__name__}: {error}")

    def _follow(self) -> None:
        """Read the progress of running jobs; end those whose block has ended."""
        over = {(block.label, block.id) for block in self._engine.blocks() if block.is_over}
        with self._lock:
            running = list(self._running.values())
        for job in running:
            seen = _read(self._run / RUNNING / f"{job.request.job}.json")
            if seen is None:
                continue
            if seen != job.seen:
                job.seen = seen
                place = f"on {seen.host}, block {seen.block}"
                self._work.watch(seen.job, Progress(seen.done, seen.total, seen.text, place))
            if (seen.label, seen.block) in over:
                self._end(job, self._lost(seen))

    def _lost(self, seen: RemoteProgress) -> BiphasicError:
        """Return the error of a job whose block has ended: a failed try, unless it got on."""
        self._forget_progress(seen.job)
        message = f"block {seen.block} on {seen.host} ended before the job"
        got_on = self._got_on(seen.job, seen)
        return RequeuedError(message) if got_on else JobFailedError(message)

    def _at_limit(self, running: _Running, error: RequeuedError) -> BiphasicError:
        """Return the error of a job whose block is at its limit: as `_lost` from the second on."""
        # The first one may have begun late in its block.
        job = running.request.job
        is_first = job not in self._steps_left
        if self._got_on(job, running.seen) or is_first:
            return error
        return JobFailedError(
            f"its block reached the time limit ({self._site.walltime}), and the one before had "
            "finished nothing that is kept; set a longer walltime in the site file"
        )

    def _got_on(self, job: str, seen: RemoteProgress | None) -> bool:
        """Return whether a try had less left to do than the one before."""
        before = self._steps_left.get(job, 0.0)
        left = seen.total - seen.first if seen and seen.total else math.inf
        self._steps_left[job] = left
        return left < before

    def _forget_progress(self, job: str) -> None:
        """Delete the file of a try that has ended: the next one may be on another block."""
        (self._run / RUNNING / f"{job}.json").unlink(missing_ok=True)

    def _note_blocks(self) -> None:
        """Remember batch jobs for the next run; say what becomes of them."""
        blocks = self._engine.blocks()
        ids = [block.batch for block in blocks if block.batch and not block.is_over]
        if ids != self._ids:
            new = [one for one in ids if one not in self._ids]
            if new and self._site.scheduler != "local":
                self._say(f"submitted batch job {', '.join(new)}")
            self._write_blocks(ids)
        for block in blocks:
            if block.failure and (block.label, block.id) not in self._failed:
                self._failed.add((block.label, block.id))
                self._say(f"block {block.id} failed: {block.failure}")
        self._mention_queue([block for block in blocks if not block.is_over])

    def _mention_queue(self, blocks: list[Block]) -> None:
        silence = self._engine.silence()
        if not silence and not (blocks and all(block.is_queued for block in blocks)):
            self._queued_since = None
            return
        now = time.monotonic()
        if self._queued_since is None:
            self._queued_since = now
        elif now - self._queued_since > _QUEUE_SECONDS:
            self._queued_since = now
            if silence:
                self._say(f"the scheduler does not answer: {silence}")
            else:
                self._say(f"waiting for nodes: {self._engine.queue()}")

    def _replace(self, problem: str) -> None:
        """Start another engine, and let all jobs run again; give up if each one soon fails."""
        now = time.monotonic()
        if len(self._restarts) == _MOST_RESTARTS and now - self._restarts[0] < _RESTART_SECONDS:
            self._give_up(f"{problem}, {_MOST_RESTARTS + 1} times within an hour")
            return
        self._restarts.append(now)
        self._say(f"{problem}; starting Parsl again")
        self._retire(self._engine)
        with self._lock:
            old, self._engine = self._engine, self._start()
            jobs = list(self._running.values())
        for job in jobs:
            self._end(job, RequeuedError("Parsl was started again"))
        self._failed.clear()  # its blocks are counted from 0
        # It may hang: its interchange is gone.
        threading.Thread(target=old.stop, daemon=True).start()

    def _retire(self, engine: Engine) -> None:
        """Cancel the blocks of an engine, and those that could not be cancelled before."""
        left, self._left = self._left, engine.cancel()
        if left and not cancel_blocks(self._site, left):
            self._left += left

    def _give_up(self, reason: str) -> None:
        self._error = ExecutorError(
            f"the cluster cannot run jobs: {reason}; scripts and logs are in {self._run}"
        )
        with self._lock:
            jobs = list(self._running.values())
        for job in jobs:
            self._end(job, self._error)

    def _cancel_leftovers(self) -> None:
        """Cancel the blocks of an earlier run that was killed; their jobs save their progress."""
        try:
            ids = json.loads((self._work.folder / _FOLDER / _BLOCKS).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return
        if isinstance(ids, list) and (known := [str(one) for one in ids if is_batch_id(str(one))]):
            is_done = cancel_blocks(self._site, known)
            what = "cancelled" if is_done else "cannot cancel"
            self._say(f"{what} batch jobs of an earlier run: {', '.join(known)}")

    def _write_blocks(self, ids: list[str]) -> None:
        self._ids = ids
        path = self._work.folder / _FOLDER / _BLOCKS
        write_text(path, json.dumps([*self._left, *ids]), is_flushed=False)


def _read(path: Path) -> RemoteProgress | None:
    try:
        return RemoteProgress.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):  # a network file system may fail once: read again
        return None


def check_site(site: Site, root: Path, *, minutes: float, console: Console) -> Iterator[str]:
    """Run a trivial job below `root`, which nodes must see; describe its node in lines of text."""
    folder = root / f".site-check-{uuid.uuid4().hex[:8]}"
    check_fits(site, folder)
    engine = Engine(site, folder, submissions=deque())
    try:
        with progress_bar(console, "waiting for a node"):
            node = _wait(engine, engine.submit(SINGLE, describe_node, None), minutes, folder)
    finally:
        left = engine.cancel()
        engine.stop()
    shutil.rmtree(folder)
    if left:
        yield f"batch jobs that could not be cancelled: {', '.join(left)}"
    yield f"{node['host']}: Python {node['python']}, torch {node['torch']}, {node['cores']} cores"
    if node["python"] != platform.python_version():
        yield f"this machine has Python {platform.python_version()}"
    yield f"GPUs: {', '.join(node['gpus']) or 'none'}"
    if len(node["gpus"]) < (1 if site.gpus_per_node else 0):
        raise ExecutorError(
            f"gpus_per_node is {site.gpus_per_node}, and torch finds no GPU on {node['host']}"
        )
    # It has read the keys there, or it could not have connected.
    yield f"{root}: seen by this machine and by {node['host']}"


def _wait(
    engine: Engine, future: Future[dict[str, Any]], minutes: float, folder: Path
) -> dict[str, Any]:
    end = time.monotonic() + 60 * minutes
    while not future.done():
        problem = engine.look() or engine.trouble(most=1)
        if problem:
            raise ExecutorError(f"no node ran a job: {problem}; scripts and logs are in {folder}")
        if time.monotonic() > end:
            raise ExecutorError(f"no node within {minutes:g} minutes; {engine.queue()}")
        time.sleep(_LOOK_SECONDS)
    error = future.exception()
    if error is not None:
        raise ExecutorError(f"a node could not run a job: {error}")
    return future.result()
