"""The reference study's values beside a study's own, where both trained with the same factors."""

from __future__ import annotations

from collections.abc import Mapping

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.score_table import DatasetInfo, ModelInfo, Scores
from biphasic.analysis.scores import paper_scores

_DATASETS = {
    "mnli": "MNLI", "qqp": "QQP", "sst2": "SST-2",
    "conll2003": "CoNLL", "ontonotes5": "OntoNotes", "uner_en": "UNER",
    "squad": "SQuAD", "squad_v2": "SQuAD-v2", "record": "ReCoRD",
    "msmarco": "MS MARCO", "nq": "NQ", "mldr": "MLDR",
}  # fmt: skip
"""Names of tasks that come with the package, and what the paper's table calls them."""
_FACTORS = (
    "size", "objective", "mask_rate", "clm_steps", "mlm_steps", "total_steps", "continued_steps",
    "is_final",
)  # fmt: skip


def paper_values(scores: Scores) -> Mapping[tuple[str, str], Estimate]:
    """Return the paper's estimates in percent points, by a study's names of model and dataset.

    A model corresponds to one of the paper's when size, objective, masking rate, the steps of each
    objective and whether it is finished all agree; a dataset when the package calls it so. Averages
    correspond only where a study's category has the paper's three datasets.
    """
    paper = paper_scores()
    theirs = {_factors(model): model.name for model in reversed(paper.models)}
    datasets = _datasets(scores)
    found: dict[tuple[str, str], Estimate] = {}
    for model in scores.models:
        name = theirs.get(_factors(model))
        for own, other in datasets.items() if name else ():
            score = paper.get(name, other)
            if score is not None and score.estimate is not None:
                found[model.name, own] = score.estimate
    return found


def paper_text(found: Estimate) -> str:
    """Write a value of the paper as its tables do: `paper: 87.85 (0.13)`."""
    half_width = "" if found.half_width is None else f" ({found.half_width:.2f})"
    return f"paper: {found.mean:.2f}{half_width}"


def _factors(model: ModelInfo) -> tuple[object, ...]:
    return tuple(getattr(model, factor) for factor in _FACTORS)


def _datasets(scores: Scores) -> dict[str, str]:
    paper = paper_scores()
    single = {
        dataset.name: _DATASETS[dataset.name]
        for dataset in scores.datasets
        if dataset.name in _DATASETS
    }
    whole = {
        average.name: average.name
        for average in scores.averages
        if {single.get(d.name, d.name) for d in scores.datasets if _is_part(d, average.task)}
        == {d.name for d in paper.datasets if _is_part(d, average.task)}
    }
    return single | whole


def _is_part(dataset: DatasetInfo, task: str) -> bool:
    return dataset.task == task and not dataset.is_average
