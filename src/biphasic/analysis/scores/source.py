"""Scores from a study's records, or from the reference study's published table.

`layout.py` reads results of other tools.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.records import ArmData, StudyRecords
from biphasic.analysis.scores.runs import cells, grid
from biphasic.analysis.scores.study_examples import example_reader
from biphasic.analysis.scores.table import (
    PERCENT,
    DatasetInfo,
    ModelInfo,
    Score,
    Scores,
    average_name,
    score_of_grid,
    with_averages,
)
from biphasic.files import digest
from biphasic.records import ArmRecord, Convention, PhaseRecord

__all__ = ["DatasetInfo", "ModelInfo", "Score", "Scores", "paper_scores", "study_scores"]

PAPER_SOURCE = "arXiv:2507.00994, Appendix C"
PAPER_SEEDS = 5
_PAPER_PARAMETERS = {"210M": 210_000_000, "610M": 610_000_000, "1B": 1_000_000_000}


@lru_cache(maxsize=1)
def paper_scores() -> Scores:
    """Return the reference study's published table: 50 rows of models, 46 of them distinct.

    Models that occur in several of its tables are repeated, as `pfs:NAME` and `cpt:NAME`.
    """
    models: dict[str, ModelInfo] = {}
    datasets: dict[str, DatasetInfo] = {}
    cells: dict[tuple[str, str], Score] = {}
    text = (
        resources.files("biphasic.analysis").joinpath("reference", "results.csv").read_text("utf-8")
    )
    for row in csv.DictReader(io.StringIO(text)):
        model = _paper_model(row)
        is_average = row["dataset"] == "Average"
        name = average_name(row["task"]) if is_average else row["dataset"]
        models.setdefault(model.name, model)
        datasets.setdefault(name, DatasetInfo(name, row["task"], row["metric"], is_average))
        number = Estimate(float(row["mean"]), float(row["ci95"]), PAPER_SEEDS)
        cells[model.name, name] = Score(number)
    return Scores(PAPER_SOURCE, "paper", tuple(models.values()), tuple(datasets.values()), cells)


def _paper_model(row: Mapping[str, str]) -> ModelInfo:
    clm, mlm, total = (int(row[f"{part}_steps"]) for part in ("clm", "mlm", "total"))
    continued = int(row["cpt_steps"] or 0)
    rate = float(row["mask_rate"]) if row["mask_rate"] else None
    masked = "" if rate is None else f"mlm{round(PERCENT * rate)}"
    if continued:
        begun = "clm" if clm else masked
        phases = f"{begun}-dec{_thousands(total - continued)}-{masked}-{_thousands(total)}"
    elif row["table"] == "data_efficiency":
        phases = f"{masked or 'clm'}-42k-{total}"
    elif clm and mlm:
        phases = f"clm-{_thousands(clm)}-{masked}-{_thousands(total)}"
    else:
        phases = f"{masked or 'clm'}-{_thousands(total)}"
    identity = f"{row['model_size']}-{phases}"
    # A state in both the table of base models and another one is named by both.
    is_repeated = row["table"] in {"pfs", "cpt"} and total == 42_000 and not (clm and mlm)
    return ModelInfo(
        name=f"{row['table']}:{identity}" if is_repeated else identity,
        label=_paper_label(row, total=total, continued=continued),
        size=row["model_size"],
        parameters=_PAPER_PARAMETERS[row["model_size"]],
        objective=row["objective"],
        mask_rate=rate,
        clm_steps=clm,
        mlm_steps=mlm,
        total_steps=total,
        start=row["cpt_init"] or None,
        continued_steps=continued,
        is_final=row["table"] != "data_efficiency",
        group=row["table"],
        identity=identity,
    )


def _paper_label(row: Mapping[str, str], *, total: int, continued: int) -> str:
    objective, rate = row["objective"], row["mask_rate"]
    masked = f" {round(PERCENT * float(rate))} %" if rate else ""
    label = f"{row['model_size']} {objective}{masked}"
    if continued:
        return f"{label}, {continued:,} more steps after {row['cpt_init']}"
    if objective == "CLM+MLM":
        return f"{label}, {int(row['clm_steps']):,} + {int(row['mlm_steps']):,} steps"
    at = "step" if row["table"] == "data_efficiency" else "steps"
    return f"{label}, step {total:,}" if at == "step" else f"{label}, {total:,} steps"


def _thousands(steps: int) -> str:
    return f"{steps // 1000}k" if steps % 1000 == 0 else str(steps)


def study_scores(records: StudyRecords, convention: Convention | None = None) -> Scores:
    """Return a study's scores, with the average over each category with several tasks.

    `convention` overrides the study's own.
    """
    by = convention or records.study.convention
    return records.once("scores", by, lambda: _study_scores(records, by))


def _study_scores(records: StudyRecords, convention: Convention) -> Scores:
    table, groups = cells(records, convention=convention), records.by_cell()
    scores = Scores(
        source=records.study.title,
        convention=convention,
        models=tuple(_study_model(arm) for arm in records.arms),
        datasets=tuple(DatasetInfo(t.name, t.kind.upper(), t.metric) for t in records.tasks),
        cells={
            key: score_of_grid(
                grid(groups.get(key, ()), metric=cell.metric),
                convention=convention,
                is_complete=cell.is_complete,
            )
            for key, cell in table.items()
        },
        examples=None if records.store is None else example_reader(table, records.store),
    )
    return with_averages(scores)


def _study_model(arm: ArmData) -> ModelInfo:
    record, phases = arm.record, _phases(arm)
    steps = _steps_by_objective(phases)
    return ModelInfo(
        name=arm.name,
        label=arm.label,
        size=_size(record.model),
        parameters=record.parameters,
        objective=record.family,
        mask_rate=next((p.mask_rate for p in reversed(phases) if p.mask_rate is not None), None),
        clm_steps=steps.get("clm", 0),
        mlm_steps=steps.get("mlm", 0),
        total_steps=record.steps,
        start=record.continues,
        continued_steps=record.continued_steps,
        is_final=record.is_final,
        flops=sum(entry.flops for entry in arm.ledger) if arm.ledger else None,
        group=record.group,
        identity=record.state,
        replicate_of=_replicate_of(record),
        pretraining_seeds=tuple(seed for _, seed in sorted(record.seeds.items())),
    )


def _replicate_of(record: ArmRecord) -> str:
    """Return the pretraining without its seeds; empty for older files, which lack it."""
    if record.phases is None:
        return ""
    recipe = {name: value for name, value in record.recipe.items() if name != "seeds"}
    phases = [phase.model_dump() for phase in record.phases]
    return digest([record.model, phases, record.continues, record.is_final, recipe])


def _phases(arm: ArmData) -> tuple[PhaseRecord, ...]:
    """Return an arm's training phases; for older files, from the ledger of its state."""
    if arm.record.phases is not None:
        return arm.record.phases
    return tuple(PhaseRecord(objective=e.objective, steps=e.steps) for e in arm.ledger)


def _steps_by_objective(phases: Iterable[PhaseRecord]) -> dict[str, int]:
    steps: dict[str, int] = {}
    for phase in phases:
        for objective, number in (
            phase.steps_by_objective or {phase.objective: phase.steps}
        ).items():
            steps[objective] = steps.get(objective, 0) + number
    return steps


def _size(model: str | None) -> str:
    """Format presets as in the paper, `210M`; other names are unchanged."""
    return model.upper() if model in {"210m", "610m", "1b"} else model or ""
