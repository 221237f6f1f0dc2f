"""A made-up table of scores whose models vary in every factor that figures ask for."""

from __future__ import annotations

from biphasic.analysis.estimate import Estimate
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Score, Scores

DATASETS = (
    DatasetInfo("words-sc", "SC", "accuracy"),
    DatasetInfo("words-tc", "TC", "entity_f1"),
    DatasetInfo("words-qa", "QA", "f1"),
    DatasetInfo("words-ir", "IR", "ndcg_at_10"),
)
PARAMETERS = {"small": 1_000_000, "large": 9_000_000}


def model(
    name: str,
    size: str,
    clm: int,
    mlm: int,
    rate: float | None = 0.4,
    **factors: object,
) -> ModelInfo:
    total = clm + mlm
    objective = {(True, True): "CLM+MLM", (True, False): "CLM", (False, True): "MLM"}.get(
        (clm > 0, mlm > 0), "none"
    )
    fields = {
        "name": name, "label": name, "size": size, "parameters": PARAMETERS.get(size),
        "objective": objective, "mask_rate": rate if mlm else None, "clm_steps": clm,
        "mlm_steps": mlm, "total_steps": total, "identity": name,
        "flops": 6.0 * PARAMETERS.get(size, 1) * 1000 * total,
    }  # fmt: skip
    return ModelInfo(**{**fields, **factors})  # type: ignore[arg-type]


def grid_models() -> list[ModelInfo]:
    models = [model("untrained", "small", 0, 0)]
    for size in PARAMETERS:
        models += [model(f"{size}-mlm{r}", size, 0, 400, r) for r in (0.2, 0.4)]
        models.append(model(f"{size}-clm", size, 400, 0))
        models += [
            model(f"{size}-{clm}-{total - clm}", size, clm, total - clm)
            for total in (200, 400)
            for clm in (0, total // 4, total // 2, total)
            if total == 200 or clm in (100, 200)
        ]
        models.append(model(f"{size}-200-200-at-20", size, 200, 200, 0.2))
    for step in (50, 100, 200):
        models.append(model(f"small-mlm-at-{step}", "small", 0, step, is_final=False))
        models.append(model(f"small-clm-at-{step}", "small", step, 0, is_final=False))
    for more in (50, 100):
        models.append(
            model(f"mlm-and-{more}", "small", 0, 400 + more, start="MLM", continued_steps=more)
        )
        models.append(
            model(f"clm-and-{more}", "small", 400, more, start="CLM", continued_steps=more)
        )
    return models


def grid_scores(
    models: list[ModelInfo] | None = None, *, datasets: tuple[DatasetInfo, ...] = DATASETS
) -> Scores:
    """Return a table in which the score of a model says which one it is: 50 + its index / 10."""
    models = grid_models() if models is None else models
    cells = {
        (found.name, dataset.name): Score(
            Estimate(50 + index / 10 + column, 0.25, 3),
            {seed: 50 + index / 10 + column + 0.1 * (seed - 1) for seed in range(3)},
        )
        for index, found in enumerate(models)
        for column, dataset in enumerate(datasets)
    }
    return Scores("Made up", "standard", tuple(models), datasets, cells)
