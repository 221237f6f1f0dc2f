"""Small tables of scores, written by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from biphasic.analysis.claims import Check, Claim, ClaimResult, Table, claims_report
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.source import paper_scores
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores

SIZES = {"210M": "pico", "610M": "nano", "1B": "micro"}


def model(name: str, **factors: object) -> ModelInfo:
    """Return a finished MLM model of 100 steps, with some factors changed."""
    usual: dict[str, object] = {
        "label": name, "size": "nano", "parameters": 3_000_000, "objective": "MLM",
        "mask_rate": 0.4, "clm_steps": 0, "mlm_steps": 100, "total_steps": 100,
    }  # fmt: skip
    if factors.get("objective") == "CLM":
        usual |= {"mask_rate": None, "clm_steps": 100, "mlm_steps": 0}
    return ModelInfo(name=name, **{**usual, **factors})  # type: ignore[arg-type]


def table(
    cells: Mapping[ModelInfo, Mapping[str, float | tuple[float, float] | None]],
    *,
    averaged: tuple[str, ...] = (),
) -> Scores:
    """Return scores: `SC` is the only dataset of task SC, `TC/a` one of several of TC.

    A number has an interval of 0.5 on both sides, a pair brings its own; None is no score.
    """
    names = dict.fromkeys(name for row in cells.values() for name in row)
    datasets = [DatasetInfo(name, name.split("/")[0], "accuracy") for name in names]
    datasets += [DatasetInfo(f"{task} Average", task, "accuracy", True) for task in averaged]
    found = {}
    for info, row in cells.items():
        for name, cell in row.items():
            if cell is None:
                continue
            mean, half = cell if isinstance(cell, tuple) else (cell, 0.5)
            found[info.name, name] = Score(Estimate(mean, half, 5))
        for task in averaged:
            parts = [v for n, v in row.items() if n.startswith(f"{task}/") and v is not None]
            means = [part[0] if isinstance(part, tuple) else part for part in parts]
            found[info.name, f"{task} Average"] = Score(Estimate(sum(means) / len(means), 0.5, 5))
    return Scores("by hand", "paper", tuple(cells), tuple(datasets), found)


def miniature() -> Scores:
    """Return the paper's table as a study of small models would have it.

    Sizes have other names, steps are a hundredth, a task has one dataset (with the scores of the
    paper's average), headings are a study's own, a model stands there once, and there are more
    models: an untrained one and mixes with 95 % of CLM at several masking rates.
    """
    paper = paper_scores()
    averages = {dataset.task: dataset.name for dataset in paper.averages}
    extra = [
        model(f"nano-clm-400-mlm{round(100 * rate)}-420", objective="CLM+MLM", mask_rate=rate,
              clm_steps=400, mlm_steps=20, total_steps=420)
        for rate in (0.2, 0.3, 0.4, 0.5)
    ]  # fmt: skip
    extra.append(model("untrained", objective="none", mask_rate=None, mlm_steps=0, total_steps=0))
    small = {
        info.name: dataclasses.replace(
            info,
            name=info.name.lower(),
            size=SIZES[info.size],
            parameters=(info.parameters or 0) // 100,
            clm_steps=info.clm_steps // 100,
            mlm_steps=info.mlm_steps // 100,
            total_steps=info.total_steps // 100,
            start=info.start if info.continued_steps else None,
            continued_steps=info.continued_steps // 100,
            group="",
        )
        for info in paper.distinct
    }
    datasets = tuple(DatasetInfo(f"pydocs-{task.lower()}", task, "f1") for task in averages)
    cells = {
        (info.name, f"pydocs-{task.lower()}"): paper.cells[name, averages[task]]
        for name, info in small.items()
        for task in averages
    }
    cells |= {
        (info.name, dataset.name): Score(Estimate(20.0, 1.0, 5))
        for info in extra
        for dataset in datasets
    }
    return Scores("miniature", "paper", (*small.values(), *extra), datasets, cells)


def ask(scores: Scores, *questions: Callable[[Table], Check]) -> ClaimResult:
    """Return the result of a claim with these questions."""
    claim = Claim("mine", "A sentence.", lambda table: [question(table) for question in questions])
    (result,) = claims_report(scores, claims=[claim])
    return result
