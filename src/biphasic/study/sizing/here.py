"""The speed of this machine for commands that load no torch, and hours in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

from biphasic.errors import StudyError

_MODULE = "biphasic.study.sizing.speed"


class Speed(NamedTuple):
    """What this machine computes: FLOP/s of a job of one thread, jobs at once, and advice."""

    flops_per_second: float
    num_jobs: int
    advice: str = ""
    """A line that names a faster precision; empty if there is none."""


def speed_here(precision: str) -> Speed:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", _MODULE, precision]
    done = subprocess.run(  # noqa: S603 - our own module
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise StudyError(f"the speed of this machine cannot be measured ({reason}); give --rate")
    return Speed(**json.loads(done.stdout.splitlines()[-1]))  # imports may have printed too
