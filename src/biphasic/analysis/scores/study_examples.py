"""Per-example test scores of a study, read from `scores.parquet` on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from biphasic.analysis.checked import check_file
from biphasic.analysis.records import Outcome
from biphasic.analysis.scores.examples import (
    ExampleReader,
    ExampleScores,
    RunExamples,
    check_value,
    metric_examples,
    needed_columns,
)
from biphasic.analysis.scores.runs import Cell
from biphasic.errors import DataError

_FILE = "scores.parquet"


def example_reader(table: Mapping[tuple[str, str], Cell], store: Path) -> ExampleReader:
    """Return a reader of the test examples of the selected runs."""

    def read(model: str, dataset: str) -> ExampleScores:
        cell = table.get((model, dataset))
        if cell is None or not cell.selected:
            raise DataError(f"{model} on {dataset}: no run has finished")
        return _read_cell(cell.selected, cell.metric, store / "finetunes")

    return read


def _read_cell(selected: Iterable[Outcome], metric: str, folder: Path) -> ExampleScores:
    ids: tuple[str, ...] | None = None
    by_seed: dict[int, RunExamples] = {}
    for outcome in selected:
        run_ids, run = _read_run(folder / outcome.run.id / _FILE, metric, outcome)
        if ids is not None and run_ids != ids:
            raise DataError(f"{_where(outcome)}: other test examples than its first seed")
        ids = run_ids
        by_seed[outcome.run.seed] = run
    return ExampleScores(ids or (), by_seed)


def _read_run(path: Path, metric: str, outcome: Outcome) -> tuple[tuple[str, ...], RunExamples]:
    where = _where(outcome)
    if not path.is_file():
        raise DataError(f"{where}: no {_FILE}")
    if damage := check_file(path):
        raise DataError(f"{where}: {damage}")
    import pyarrow as pa  # noqa: PLC0415 - slow to load, and most commands read no examples
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        # Loads less of Arrow than `read_table`, and is faster on thousands of small files.
        with pq.ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            needed = [name for name in needed_columns(metric) if name in names]
            table = file.read(columns=["split", "id", *needed])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"{where}: {_FILE} is damaged ({error})") from None
    columns = table.to_pydict()
    rows = [index for index, split in enumerate(columns["split"]) if split == "test"]
    picked = {name: [column[row] for row in rows] for name, column in columns.items()}
    run = metric_examples(metric, {name: picked[name] for name in needed})
    expected = outcome.score("test", metric)
    if expected is None:
        raise DataError(f"{where}: no score to compare its examples with")
    check_value(run, expected, where=where)
    return tuple(picked["id"]), run


def _where(outcome: Outcome) -> str:
    run = outcome.run
    return f"{run.arm} on {run.task}, learning rate {run.learning_rate:g}, seed {run.seed}"
