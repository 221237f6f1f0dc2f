"""A process that runs jobs: `python -m biphasic.study.run.worker STORE THREADS`."""

from __future__ import annotations

from biphasic.execution.worker import serve
from biphasic.study.run.jobs import load_job

if __name__ == "__main__":
    serve(load_job)
