"""Tables of published datasets: opening at a revision, checking columns, splitting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from biphasic.config import nearest
from biphasic.data.text.hub import HubTable, find_copy, open_hub
from biphasic.rows import Row as Line
from biphasic.rows import rows
from biphasic.tasks.task_file import DatasetTable

if TYPE_CHECKING:
    from datasets import Dataset

SPLIT_SEED = 42

Row = dict[str, Any]
Origin = dict[str, Any]  # what a description says about the origin of its data, beside tables


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens tables and records the source of each."""

    copies: Path | None  # local copies as `owner/name/`, used instead of the hub
    revisions: Mapping[str, str]  # by dataset; others use the newest
    origins: list[Row] = field(default_factory=list)

    def open(self, table: DatasetTable, *, streaming: bool = False) -> HubTable:
        """Open a table; without streaming, its rows support random access."""
        opened = open_hub(
            table.dataset,
            config=table.config,
            split=table.split,
            revision=self.revisions.get(table.dataset),
            streaming=streaming,
            copies=self.copies,
        )
        self.origins.append(opened.origin)
        return opened

    def stream(self, table: DatasetTable, columns: Sequence[str]) -> Iterator[Row]:
        """Read columns of a table row by row, with bounded memory."""
        # A local copy may hold the files that BEIR and MLDR publish, without configurations.
        names = (f"{table.split}.jsonl", f"{table.split}.jsonl.gz")
        if (file := self.find_file(table, *names)) is None:
            return self.open(table, streaming=True).read(columns)
        return (columns_of(line, columns) for line in rows(file))

    def find_file(self, table: DatasetTable, *names: str) -> Path | None:
        """Return the first of several files that a local copy has, and record it as read."""
        folder = find_copy(table.dataset, self.copies)
        files = (folder / name for name in names) if folder else ()
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            origin = {"dataset": table.dataset, "config": table.config, "split": table.split}
            self.origins.append({**origin, "revision": None, "local": True})
        return file


def columns_of(line: Line, columns: Sequence[str]) -> Row:
    """Return the fields of a row, which has these columns."""
    for column in columns:
        if column not in line.value:
            raise line.error(f"no field '{column}'{nearest(column, line.value)}")
    return line.value


def dataset_of(opened: HubTable) -> Dataset:
    """Return the rows of a table opened without streaming."""
    return cast("Dataset", opened.rows)


def select(opened: HubTable, indices: Sequence[int]) -> HubTable:
    """Return some rows of a table opened without streaming."""
    return replace(opened, rows=dataset_of(opened).select(indices))
