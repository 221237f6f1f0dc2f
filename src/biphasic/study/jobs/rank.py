"""One rank of a training job: `python -m biphasic.study.jobs.rank JOBFILE`, by `node.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.execution.job import Report, ShouldStop
from biphasic.execution.rank_worker import serve
from biphasic.plugin_code import look_in
from biphasic.study.jobs.train import TrainJob

if TYPE_CHECKING:
    from biphasic.distributed import ProcessGroup


def _train(job: str, report: Report, should_stop: ShouldStop, ranks: ProcessGroup) -> None:
    look_in(Path(json.loads(job)["store"]))
    TrainJob.model_validate_json(job).train(report, should_stop=should_stop, ranks=ranks)


if __name__ == "__main__":
    serve(_train)
