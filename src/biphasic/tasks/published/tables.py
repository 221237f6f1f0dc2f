"""Tables of published datasets: opening at a revision, checking columns, splitting."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from biphasic.config import nearest
from biphasic.data.text.hub import HubTable, find_copy, open_hub
from biphasic.errors import DataError
from biphasic.rows import Row as Line
from biphasic.rows import rows
from biphasic.tasks.records import SPLITS
from biphasic.tasks.task_file import DatasetTable, HubTables

if TYPE_CHECKING:
    from datasets import Dataset

TRAIN_SHARE = 0.95
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


def read_splits(
    hub: HubTables,
    opener: Opener,
    rows: Callable[[DatasetTable, HubTable, Iterable[int]], Iterator[Row]],
) -> dict[str, Iterator[Row]]:
    """Read the tables of splits; without one of validation, cut it off the training split."""
    named = {split: table for split in SPLITS if (table := getattr(hub, split))}
    opened = {split: opener.open(table) for split, table in named.items()}
    splits = {
        split: rows(named[split], table, itertools.count()) for split, table in opened.items()
    }
    if "validation" in splits:
        return splits
    parts = halves(named["train"], len(dataset_of(opened["train"])))
    cut = {
        split: rows(named["train"], select(opened["train"], numbers), numbers)
        for split, numbers in parts.items()
    }
    return {**cut, "test": splits["test"]}


def halves(table: DatasetTable, num_rows: int) -> dict[str, list[int]]:
    """Split row numbers into train and validation, as the library's `train_test_split` does."""
    import datasets  # noqa: PLC0415 - slow import that few tasks need

    if num_rows < 2:
        raise DataError(f"{table}: {num_rows} rows cannot be split into train and validation")
    numbers = datasets.Dataset.from_dict({"row": list(range(num_rows))})
    parts = numbers.train_test_split(train_size=TRAIN_SHARE, seed=SPLIT_SEED)
    # Read the whole column: reading single rows is slow.
    return {"train": parts["train"]["row"][:], "validation": parts["test"]["row"][:]}


def dataset_of(opened: HubTable) -> Dataset:
    """Return the rows of a table opened without streaming."""
    return cast("Dataset", opened.rows)


def select(opened: HubTable, indices: Sequence[int]) -> HubTable:
    """Return some rows of a table opened without streaming."""
    return replace(opened, rows=dataset_of(opened).select(indices))


def find_column(table: DatasetTable, names: Iterable[str], *spellings: str) -> str:
    """Return the first of several spellings that is a column of the table."""
    existing = list(names)
    for spelling in spellings:
        if spelling in existing:
            return spelling
    expected = " or ".join(f"'{spelling}'" for spelling in spellings)
    raise DataError(
        f"{table}: no column {expected}; found {', '.join(existing) or 'none'}; "
        f"pin a revision that has it, or give a local copy (docs/protocol.md)"
    )


def label_names(table: DatasetTable, feature: Any, published: Sequence[str]) -> tuple[str, ...]:
    """Return the names of an integer label column, by default the published ones."""
    names = tuple(getattr(feature, "names", None) or published)
    if sorted(names) != sorted(published):
        raise DataError(
            f"{table}: its labels are {', '.join(names)}, not {', '.join(published)}; "
            f"pin a revision that has these"
        )
    return names


def label_name(table: DatasetTable, number: int, value: Any, names: Sequence[str]) -> str:
    """Return the name of a label that a row gives as a number or a name."""
    if isinstance(value, str) and value in names:
        return value
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    raise DataError(f"{table}, row {number}: unknown label {value!r}; known: {', '.join(names)}")
