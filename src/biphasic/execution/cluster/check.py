"""A trial of a site file: one trivial job, and what its node has."""

from __future__ import annotations

import platform
import shutil
import time
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rich.console import Console

from biphasic.execution.cluster.engine import SINGLE, Engine
from biphasic.execution.cluster.remote import describe_node
from biphasic.execution.cluster.site import Site, check_fits
from biphasic.execution.job import ExecutorError
from biphasic.progress import progress_bar

_LOOK_SECONDS = 0.5


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
