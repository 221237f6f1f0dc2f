"""Hub datasets or local copies of them, read with `load_dataset`, which takes seconds to import."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.config import nearest
from biphasic.data.text.source import files_fingerprint, is_hidden, list_files
from biphasic.errors import DataError, one_line
from biphasic.files import digest, expanded
from biphasic.hub import ANSWER_SECONDS, check_hub_id, explain, library_errors, quiet

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

Resolve = Callable[[str, str | None], str]  # of a dataset and a revision, the commit
COMMIT = re.compile(r"[0-9a-f]{40}")
_ROWS_AT_ONCE = 256
# By default the words "NA", "None", "nan", "null" and others are missing values, too.
_CSV = {"keep_default_na": False, "na_values": [""]}
# Columns of ids and texts are not read as numbers, dates or truth values.
_TEXTS = (
    "id", "_id", "query-id", "corpus-id", "title", "text", "question", "context",
    "query", "anchor", "positive", "negative", "sentence_good", "sentence_bad", "cluster",
)  # fmt: skip


@dataclass(frozen=True)
class HubTable:
    """The rows of one split."""

    rows: datasets.Dataset | datasets.IterableDataset
    # Dataset, config, split and revision (the commit, or None with `local` for a copy).
    origin: dict[str, Any]

    def read(self, columns: Sequence[str], *, optional: Sequence[str] = ()) -> Iterator[dict]:
        """Yield rows as dictionaries of the columns, and of `optional` ones that exist."""
        where = describe(self.origin)
        batches: Any = iter(self.rows.with_format("arrow").iter(_ROWS_AT_ONCE))
        while True:
            try:
                batch = next(batches, None)
            except (*library_errors(), ValueError) as error:
                raise DataError(f"{where}: {explain(error)}") from None
            if batch is None:
                return
            for column in columns:
                if column not in batch.column_names:
                    known = nearest(column, batch.column_names)
                    raise DataError(f"{where}: no column '{column}'{known}")
            extra = [name for name in optional if name in batch.column_names]
            try:
                yield from _values(batch.select(list(dict.fromkeys([*columns, *extra]))))
            except UnicodeDecodeError as error:
                raise DataError(f"{where}: damaged: text that is not UTF-8 ({error})") from None


def _values(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, with their JSON decoded."""
    # A column of JSON lines with values of several types is stored as JSON: text is in quotes.
    encoded = [field.name for field in table.schema if "arrow.json" in str(field.type)]
    rows = table.to_pylist()
    if not encoded:
        return rows
    from datasets import Features  # noqa: PLC0415

    features = Features.from_arrow_schema(table.select(encoded).schema)
    return [row | features.decode_example({name: row[name] for name in encoded}) for row in rows]


@dataclass(frozen=True, slots=True)
class HubSplit:
    """One split of a dataset, on the hub or in a local copy.

    `copies` are a folder with local copies as `owner/name/`, used instead of the hub; they have no
    revisions.
    """

    dataset: str  # hub id, or path of a local folder in the hub's layout
    config: str | None = None
    split: str = "train"
    revision: str | None = None  # branch, tag or commit; the newest by default
    column: str | None = None
    streaming: bool = False  # whether rows are read over the network on demand

    def at_commit(self, copies: Path | None, resolve: Resolve) -> HubSplit:
        """Return the split at the commit that the hub has now, unless there is a local copy."""
        if find_copy(self.dataset, copies):
            return self
        return replace(self, revision=resolve(self.dataset, self.revision))

    def open(self, copies: Path | None = None, *, texts: Sequence[str] = ()) -> HubTable:
        """Open the split, which may also be a slice such as `train[:1000]` without streaming.

        `texts` are columns of texts beside those with usual names.
        """
        local, origin = self._locate(copies)
        place, commit = str(local or self.dataset), origin["revision"]
        import datasets  # noqa: PLC0415

        try:
            with quiet():
                matching = {
                    "path": place,
                    "name": self.config,
                    "revision": commit,
                    "cache_dir": _cache_of(local) if local else None,
                }
                csv: dict[str, Any] = {}
                if _is_csv(datasets.load_dataset_builder(**matching)):
                    csv = {**_CSV, "converters": dict.fromkeys((*_TEXTS, *texts), _as_written)}
                rows = datasets.load_dataset(
                    **matching, split=self.split, streaming=self.streaming, **csv
                )
        except ValueError as error:
            # The library's messages about wrong names are long, so look up the names ourselves.
            reason = self._wrong_name(place, commit) or one_line(error)
            raise DataError(f"{describe(origin)}: {reason}") from None
        except StopIteration:  # of the library, which looks for the first row
            raise DataError(f"{describe(origin)}: its files have no rows") from None
        except library_errors() as error:
            raise DataError(f"{describe(origin)}: {explain(error)}") from None
        return HubTable(rows=rows, origin=origin)

    def config_names(self, copies: Path | None = None) -> tuple[list[str], str | None]:
        """Return the dataset's configurations in order, and the commit; None for a local copy."""
        local, origin = self._locate(copies)
        place, commit = str(local or self.dataset), origin["revision"]
        import datasets  # noqa: PLC0415

        try:
            with quiet():
                names = datasets.get_dataset_config_names(place, revision=commit)
        except (*library_errors(), ValueError) as error:
            raise DataError(f"hf:{self.dataset}: {explain(error)}") from None
        return sorted(names), commit

    def fingerprint(self, copies: Path | None = None) -> dict[str, Any]:
        """Return what determines its rows: the commit on the hub, or a local copy's files."""
        local, origin = self._locate(copies)
        return {**origin, "files": _copy_fingerprint(local)} if local else origin

    def _locate(self, copies: Path | None) -> tuple[Path | None, dict[str, Any]]:
        """Return the folder of a local copy, if there is one, and the origin of the split."""
        local, name = find_copy(self.dataset, copies), self.dataset
        if local and self.revision:
            raise DataError(
                f"hf:{name}: the local copy has no revision '{self.revision}'; omit the revision, "
                "or the copy"
            )
        # Folders are named without their path: the same copy elsewhere is the same data.
        if local and expanded(name) == local:
            name = local.resolve().name
        commit = None if local else resolve_revision(name, self.revision)
        named = {"dataset": name, "config": self.config, "split": self.split, "revision": commit}
        if local is None:
            return None, named
        # The library takes a bare `json` or `csv` for a format, and reads the working folder.
        return local.absolute(), {**named, "local": True}

    def _wrong_name(self, place: str, commit: str | None) -> str:
        """Return a message about a missing config or split; empty if neither is missing."""
        import datasets  # noqa: PLC0415

        try:
            with quiet():
                configs = datasets.get_dataset_config_names(place, revision=commit)
                if self.config is None and len(configs) > 1:
                    default = datasets.get_dataset_default_config_name(place, revision=commit)
                    if default is None:
                        return f"several configs; choose one of {', '.join(sorted(configs))}"
                elif self.config is not None and self.config not in configs:
                    return f"no config '{self.config}'{nearest(self.config, configs)}"
                splits = datasets.get_dataset_split_names(place, self.config, revision=commit)
        except (*library_errors(), ValueError):
            return ""  # the original error is more specific
        name = self.split.partition("[")[0]
        if name not in splits:
            return f"no split '{name}'{nearest(name, splits)}"
        is_slice = self.streaming and name != self.split
        return "a slice of a split cannot be streamed" if is_slice else ""


def _as_written(cell: str) -> str | None:
    return cell or None


def _is_csv(builder: datasets.DatasetBuilder) -> bool:
    from datasets.packaged_modules.csv.csv import Csv  # noqa: PLC0415

    return isinstance(builder, Csv)


def find_copy(dataset: str, copies: Path | None) -> Path | None:
    """Return the local folder of a dataset, or None to use the hub."""
    folder = expanded(dataset)
    if dataset and folder.is_dir():
        return folder
    check_hub_id(dataset)
    if copies and not copies.is_dir():
        raise DataError(f"{copies}: no such folder (local copies, for hf:{dataset})")
    copy = copies / dataset if copies else None
    return copy if copy and copy.is_dir() else None


def _cache_of(local: Path) -> str:
    # By default the library identifies a copy by its folder name only, and would return the old
    # rows of a changed copy or of another one with the same name.
    import datasets.config  # noqa: PLC0415

    key = digest({"path": str(local.resolve()), "files": _copy_fingerprint(local)})[:32]
    return str(Path(datasets.config.HF_DATASETS_CACHE) / "local-copies" / key)


def _copy_fingerprint(local: Path) -> dict[str, Any]:
    # Downloads write notes to `.cache`, which change while the data stay the same.
    files = (file for file in list_files(local) if not is_hidden(file, local))
    return files_fingerprint(local, files)


def resolve_revision(dataset: str, revision: str | None) -> str:
    """Return the commit of a branch, tag or commit of a hub dataset; None is its default branch."""
    if revision and COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi  # noqa: PLC0415

    try:
        with quiet():
            commit = HfApi().dataset_info(dataset, revision=revision, timeout=ANSWER_SECONDS).sha
    except library_errors() as error:
        at = f" at revision '{revision}'" if revision else ""
        raise DataError(f"hf:{dataset}{at}: {explain(error)}") from None
    if not commit:
        raise DataError(f"hf:{dataset}: the hub returned no commit; set a full one as revision")
    return commit


def describe(origin: dict[str, Any]) -> str:
    """Return a table's name for messages: `hf:owner/name, config a, split train`."""
    config = f", config {origin['config']}" if origin["config"] else ""
    return f"hf:{origin['dataset']}{config}, split {origin['split']}"
