"""Datasets that two tables share, and chosen ones: the paper's numbers beside a study's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores
from biphasic.config import nearest
from biphasic.errors import ConfigError

# Names of the public tasks and of their copies, in lower case without punctuation.
_SAME_DATASET = {
    "ontonotes5": "ontonotes",
    "conll2003": "conll",
    "conll2003en": "conll",
    "uneren": "uner",
    "mldren": "mldr",
}
# The paper's F1 of tags is a mean over sentences (inferred from its public code).
_SAME_METRIC = {("TC", "f1"): "sentence_token_f1", ("IR", "ndcg@10"): "ndcg_at_10"}
ReferenceValues = Mapping[tuple[str, str], Estimate]  # values by names of model and dataset


def alike_datasets(scores: Scores, reference: Scores) -> dict[str, DatasetInfo]:
    """Return the dataset of `reference` that matches each dataset of `scores`, if there is one."""
    # The metric must match too. Averages match if they are over the same datasets.
    theirs = {_identity(dataset): dataset for dataset in reference.datasets}
    pairs = {
        dataset.name: theirs[_identity(dataset)]
        for dataset in scores.datasets
        if not dataset.is_average and _identity(dataset) in theirs
    }
    by_task = {average.task: average for average in reference.averages}
    for average in scores.averages:
        other = by_task.get(average.task)
        names = [member.name for member in scores.members(average)]
        if other is not None and all(name in pairs for name in names):
            members = {member.name for member in reference.members(other)}
            if {pairs[name].name for name in names} == members:
                pairs[average.name] = other
    return pairs


def reference_values(scores: Scores, reference: Scores) -> ReferenceValues:
    """Return another table's values for a table's cells; cells that it does not have are absent."""
    theirs = {_recipe(model): model.name for model in reversed(reference.models)}
    datasets = alike_datasets(scores, reference)
    return {
        (model.name, name): value
        for model in scores.models
        for name, dataset in datasets.items()
        if (value := reference.get(theirs.get(_recipe(model), ""), dataset.name).estimate)
    }


def plain_name(dataset: DatasetInfo) -> str:
    """Return a dataset's name in lower case without punctuation; copies have one name."""
    name = "".join(c for c in dataset.name.casefold() if c.isalnum())
    return _SAME_DATASET.get(name, name)


def _identity(dataset: DatasetInfo) -> tuple[str, str, str, bool]:
    metric = _SAME_METRIC.get((dataset.task, dataset.metric), dataset.metric)
    return dataset.task, plain_name(dataset), metric, dataset.is_average


def _recipe(model: ModelInfo) -> tuple[Any, ...]:
    """Return the factors that models of two tables must share to be alike."""
    start = model.start if model.continued_steps else None
    return (
        model.size.casefold(), model.objective, model.mask_rate, model.clm_steps, model.mlm_steps,
        model.total_steps, start, model.continued_steps, model.is_final,
    )  # fmt: skip


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
