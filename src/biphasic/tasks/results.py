"""Fine-tuning results on disk: metrics as JSON, per-example scores as Parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from biphasic.facts import facts_to_record
from biphasic.files import complete_folder, write_json
from biphasic.model.compute.device import compute_device
from biphasic.records import ResultRecord
from biphasic.tasks.finetune import FinetuneResult
from biphasic.tasks.kinds.kind import Column, SplitScores
from biphasic.tasks.kinds.registry import KINDS

RESULT_FORMAT = "biphasic.finetune/1"
_NOTHING = SplitScores({}, (), np.empty(0))


def write_result(
    folder: Path, result: FinetuneResult, *, run_id: str, state: str, code: str
) -> None:
    """Write a run's `result.json` and `scores.parquet`, with a row for each example, at once."""
    splits = result.scores or {}
    metrics = {split: scores.metrics for split, scores in splits.items()}
    record = ResultRecord(
        format=RESULT_FORMAT,
        id=run_id,
        state=state,
        task=result.task.name,
        kind=result.task.kind,
        metric=result.task.metric,
        trained_on=result.trained_on,
        learning_rate=result.learning_rate,
        seed=result.seed,
        status=result.status,
        steps=result.steps,
        validation=metrics.get("validation"),
        test=metrics.get("test"),
        by_type={split: scores.by_type for split, scores in splits.items() if scores.by_type},
        num_truncated=result.num_truncated,
        seconds=result.seconds,
        device=str(compute_device()),
        code=code,
        about=facts_to_record(result.task.kind, KINDS[result.task.kind].facts),
    )
    tables = [_split_table(split, scores) for split, scores in splits.items()]
    with complete_folder(folder, format=RESULT_FORMAT, id=run_id) as partial:
        write_json(partial / "result.json", record.model_dump(mode="json"), is_flushed=False)
        table = pa.concat_tables(tables or [_split_table("test", _NOTHING)])
        pq.write_table(table, partial / "scores.parquet")


def _split_table(split: str, scores: SplitScores) -> pa.Table:
    return pa.table(
        {
            "split": pa.array([split] * len(scores.ids), pa.string()),
            "id": pa.array(scores.ids, pa.string()),
            "score": pa.array(scores.scores, pa.float64()),
            **{name: _array(column) for name, column in scores.columns.items()},
        }
    )


def _array(column: Column) -> pa.Array:
    # Arrow cannot infer the item type if all lists are empty.
    has_lists = len(column) > 0 and isinstance(column[0], list)
    return pa.array(column, pa.list_(pa.string()) if has_lists else None)
