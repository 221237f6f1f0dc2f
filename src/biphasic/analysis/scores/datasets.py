"""Chooses the datasets that scores, averages and figures are over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from biphasic.analysis.scores.reference import plain_name
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import DatasetInfo
from biphasic.config import nearest
from biphasic.errors import ConfigError


@dataclass(frozen=True)
class DatasetChoice:
    """Names of datasets, of any case: only these (all if empty), without those."""

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def left_out(self, names: Iterable[str], *, default: Iterable[str] = ()) -> set[str]:
        """Return the datasets to leave out; `default` are left out unless `only` is given."""
        known = {name.casefold(): name for name in names}
        for option, given in (("--dataset", self.only), ("--without", self.without)):
            for name in given:
                if name.casefold() not in known:
                    hint = nearest(name, [*known.values()])
                    raise ConfigError(f"{option} {name}: no such dataset{hint}")
        only = {known[name.casefold()] for name in self.only}
        omitted = {known[name.casefold()] for name in self.without}
        omitted |= {*known.values()} - only if only else {*default}
        if known and omitted >= {*known.values()}:
            raise ConfigError("--without: no dataset is left")
        return omitted


EVERY = DatasetChoice()


def paper_datasets(datasets: Sequence[DatasetInfo]) -> dict[str, DatasetInfo]:
    """Return the paper's dataset of each dataset in categories that have all of the paper's."""
    theirs = {(d.task, plain_name(d)): d for d in paper_scores().datasets if not d.is_average}
    found = {each.name: theirs.get((each.task, plain_name(each))) for each in datasets}
    pairs = {name: each for name, each in found.items() if each is not None}
    for task in {each.task for each in datasets}:
        expected = sorted(each.name for each in theirs.values() if each.task == task)
        here = {name: each for name, each in pairs.items() if each.task == task}
        if sorted(each.name for each in here.values()) != expected:
            pairs = {name: each for name, each in pairs.items() if name not in here}
    return pairs
