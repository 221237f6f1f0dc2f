"""Published minimal pairs: a configuration of a dataset for each paradigm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from biphasic.data.text.hub import config_names
from biphasic.tasks.kinds.minimal_pairs import MinimalPairs
from biphasic.tasks.published.tables import DatasetTable, Fields, Opener, PublishedTask, Row
from biphasic.tasks.rows.content import TaskContent

_COLUMNS = ("sentence_good", "sentence_bad", "UID")


@dataclass(frozen=True, kw_only=True)
class PublishedPairs(PublishedTask):
    """A dataset with BLiMP's columns; all pairs are the test split."""

    dataset: str
    split: str = "train"  # as the hub calls the only one
    kind: str = MinimalPairs.name

    @property
    def tables(self) -> tuple[DatasetTable, ...]:
        """Return one table for all: they are of one commit, or one local copy."""
        return (DatasetTable(self.dataset, self.split),)

    def read(self, opener: Opener, *, paper: bool) -> tuple[Fields, TaskContent]:
        """Read all configurations, in order of their names."""
        del paper
        configs, commit = config_names(
            self.dataset, revision=opener.revisions.get(self.dataset), copies=opener.copies
        )
        if commit is not None:
            opener = replace(opener, revisions={self.dataset: commit})
        return {}, TaskContent(labels=(), splits={"test": self._rows(opener, configs)})

    def _rows(self, opener: Opener, configs: list[str]) -> Iterator[Row]:
        for config in configs:
            opened = opener.open(DatasetTable(self.dataset, self.split, config))
            for number, row in enumerate(opened.read(_COLUMNS)):
                yield {"id": f"{config}-{number}", **{name: row[name] for name in _COLUMNS}}
