"""Results of fine-tunings on disk: metrics as JSON, the score of every example as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from biphasic.files import complete_folder, write_json
from biphasic.tasks.finetune import FinetuneResult

RESULT_FORMAT = "biphasic.finetune/1"
_SCHEMA = pa.schema([("split", pa.string()), ("id", pa.string()), ("score", pa.float64())])


def write_result(folder: Path, result: FinetuneResult, *, run_id: str, state: str) -> None:
    """Write a run's folder, complete or not at all: `result.json` and `scores.parquet`.

    Args:
        folder: The folder to write, named by the run's identity.
        result: What came of the run.
        run_id: The run's identity.
        state: Identity of the state that was fine-tuned.
    """
    with complete_folder(folder, format=RESULT_FORMAT, id=run_id) as partial:
        write_json(partial / "result.json", _record(result, run_id=run_id, state=state))
        pq.write_table(_score_table(result), partial / "scores.parquet")


def _record(result: FinetuneResult, *, run_id: str, state: str) -> dict[str, Any]:
    metrics = {split: scores.metrics for split, scores in (result.scores or {}).items()}
    return {
        "format": RESULT_FORMAT,
        "id": run_id,
        "state": state,
        "task": result.task.name,
        "kind": result.task.kind,
        "metric": result.task.metric,
        "learning_rate": result.learning_rate,
        "seed": result.seed,
        "status": result.status,
        "steps": result.steps,
        "validation": metrics.get("validation"),
        "test": metrics.get("test"),
        "seconds": result.seconds,
    }


def _score_table(result: FinetuneResult) -> pa.Table:
    splits = result.scores or {}
    columns = [
        [split for split, scores in splits.items() for _ in scores.ids],
        [example for scores in splits.values() for example in scores.ids],
        np.concatenate([scores.scores for scores in splits.values()] or [np.empty(0)]),
    ]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )
