"""Scores from a study's records, or from the reference study's published table.

Test examples of a study are read from `scores.parquet` on demand. `layout.py` reads results of
other tools.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from biphasic.amounts import percent_number
from biphasic.analysis.estimate import Estimate, estimate
from biphasic.analysis.records import ArmData, StudyRecords, describe_run
from biphasic.analysis.scores.examples import (
    ExampleReader,
    ExampleScores,
    RunExamples,
    check_value,
    mean_of_runs,
    metric_examples,
    needed_columns,
)
from biphasic.analysis.scores.table import (
    PERCENT,
    UNTRAINED,
    DatasetInfo,
    ModelInfo,
    Planned,
    Score,
    Scores,
    average_name,
    score_of_grid,
    with_averages,
)
from biphasic.errors import CheckpointError, DataError, is_system_fault
from biphasic.facts import LOSS_UNITS, NATS, RANDOM_VECTORS, baseline_label
from biphasic.files import digest
from biphasic.plugins import short_name
from biphasic.records import (
    ArmRecord,
    Convention,
    PhaseRecord,
    QuestionRecord,
    ResultRecord,
    StudyRecord,
)
from biphasic.store import RESULT, Store

PAPER_SOURCE = "arXiv:2507.00994, Appendix C"
PAPER_SEEDS = 5
EXAMPLES = "scores.parquet"
# Its columns of what examples share, the first one that it has; "" in the second is none.
_CLUSTERS = ("cluster", "paradigm")
_PAPER_PARAMETERS = {"210M": 210_000_000, "610M": 610_000_000, "1B": 1_000_000_000}


@lru_cache(maxsize=1)
def paper_scores() -> Scores:
    """Return the reference study's published table: 50 rows of models, 46 of them distinct."""
    # Models that occur in several of its tables are repeated, as `pfs:NAME` and `cpt:NAME`.
    models: dict[str, ModelInfo] = {}
    datasets: dict[str, DatasetInfo] = {}
    cells: dict[tuple[str, str], Score] = {}
    table = resources.files("biphasic.analysis").joinpath("reference", "results.csv")
    for row in csv.DictReader(table.read_text("utf-8").splitlines()):
        model = _paper_model(row)
        is_average = row["dataset"] == "Average"
        name = average_name(row["task"]) if is_average else row["dataset"]
        models.setdefault(model.name, model)
        datasets.setdefault(name, DatasetInfo(name, row["task"], row["metric"], is_average))
        number = Estimate(float(row["mean"]), float(row["ci95"]), PAPER_SEEDS)
        cells[model.name, name] = Score(number)
    return Scores(PAPER_SOURCE, "paper", tuple(models.values()), tuple(datasets.values()), cells)


def _paper_model(row: Mapping[str, str]) -> ModelInfo:
    name = row["model"]
    return ModelInfo(
        name=name,
        label=row["label"],
        size=row["model_size"],
        parameters=_PAPER_PARAMETERS[row["model_size"]],
        objective=row["objective"],
        mask_rate=float(row["mask_rate"]) if row["mask_rate"] else None,
        clm_steps=int(row["clm_steps"]),
        mlm_steps=int(row["mlm_steps"]),
        total_steps=int(row["total_steps"]),
        start=row["cpt_init"] or None,
        continued_steps=int(row["cpt_steps"] or 0),
        is_final=row["table"] != "data_efficiency",
        group=row["table"],
        # A state in both the table of base models and another one is named by both.
        identity=name.partition(":")[2] or name,
    )


def study_scores(records: StudyRecords, convention: Convention | None = None) -> Scores:
    """Return a study's scores, with the average over each category with several tasks."""
    # `convention` overrides the study's own.
    by = convention or records.study.convention
    return records.once(f"scores, {by}", lambda: _study_scores(records, by))


def _study_scores(records: StudyRecords, convention: Convention) -> Scores:
    cells = dict.fromkeys(records.by_cell, Score(None, {}, is_complete=False))
    for key, runs in records.grids.items():
        # A diverged rate was tried and lost; a missing one might have been the best.
        is_tried = all(run in records.results for run in records.by_cell.get(key, ()))
        cells[key] = score_of_grid(
            runs,
            convention=convention,
            is_complete=is_tried and {run.seed for run in runs} == records.seeds_of(*key),
            tried=(run.learning_rate for run in records.by_cell.get(key, ())),
        )
    recipes, hashes = _recipes(records.study), _hashes(records.study)
    scores = Scores(
        source=records.study.title,
        convention=convention,
        models=tuple(_study_model(arm, records.study, recipes[arm.name]) for arm in records.arms),
        datasets=tuple(
            DatasetInfo(
                task.name,
                short_name(task.kind).upper(),
                task.metric,
                trained_on=task.trained_on or "",
                num_train=task.num_train,
                data=str(hashes.get(task.name, "")),
                about=task.about,
            )
            for task in records.tasks
        ),
        cells=cells,
        planned=tuple(_planned(records.study)),
        baselines=tuple(map(_baseline_model, dict.fromkeys(name for name, _ in records.baselines))),
        baseline_cells=dict(_baseline_scores(records, convention)),
        examples=None if records.store is None else _example_reader(records, records.store),
    )
    return with_averages(scores)


def _baseline_scores(
    records: StudyRecords, convention: Convention
) -> Iterator[tuple[tuple[str, str], Score]]:
    """Yield the score of each baseline on each task, by name and task."""
    metrics = {task.name: task.metric for task in records.tasks}
    for (name, task), results in records.baselines.items():
        shares = {result.id: (result.test or {})[metrics[task]] for result in results}
        mean = estimate([*shares.values()], convention=convention)
        by_seed = {
            seed: PERCENT * fmean(shares[result.id] for result in of)
            for seed, of in _by_seed(records, name, task).items()
        }
        is_complete = len(results) == _num_planned(records, name, task)
        yield (name, task), Score(mean and mean.in_points, by_seed, is_complete)


def _num_planned(records: StudyRecords, name: str, task: str) -> int:
    """Return how many results a baseline of a task has when none is missing."""
    return sum((one.arm, one.task) == (name, task) for one in records.study.baselines)


def _by_seed(records: StudyRecords, name: str, task: str) -> dict[int, Sequence[ResultRecord]]:
    """Return the results of a baseline that are paired with each seed of the arms."""
    results = records.baselines[name, task]
    seeds = sorted({run.seed for run in records.runs if run.task == task})
    if name.startswith(RANDOM_VECTORS) or _num_planned(records, name, task) == 1:
        return dict.fromkeys(seeds, results)
    own = {result.seed: (result,) for result in results}  # of the training examples of a seed
    return {seed: own[seed] for seed in seeds if seed in own}


def _baseline_model(name: str) -> ModelInfo:
    # Like a finished encoder, it has no pretraining seeds and is paired with every run.
    return ModelInfo(name, baseline_label(name), is_finished_encoder=True, identity=name)


def asked_of(question: QuestionRecord) -> Iterator[Planned]:
    """Yield the comparisons of a question, in order."""
    for one in question.comparisons:
        yield Planned(one.first, one.second, one.tasks, one.minus, question.name)


def _planned(study: StudyRecord) -> Iterator[Planned]:
    for question in study.questions:
        yield from asked_of(question)
    for one in study.compare:
        yield Planned(one.first, one.second, one.tasks)


def _study_model(arm: ArmData, study: StudyRecord, recipe: str) -> ModelInfo:
    record, phases = arm.record, arm.record.phases
    if phases is None:  # an older file: from the ledger of its state
        phases = tuple(PhaseRecord(objective=e.objective, steps=e.steps) for e in arm.ledger)
    steps: Counter[str] = Counter()
    size = record.model or ""
    for phase in phases:
        steps.update(phase.steps_by_objective or {phase.objective: phase.steps})
    # The arm's own settings come before the study's; older records have neither.
    settings = (record.recipe, study.provenance.get("recipe", {}))
    optimizers = (each.get("optimizer", {}).get("name") for each in settings)
    objective = record.family
    if record.attention and objective != UNTRAINED:
        # Figures and claims about an objective are not about models that attend otherwise.
        objective += f", {record.attention}"
    rates = _mask_rates(phases, record.continued_steps)
    if len(rates) > 1:  # nor about models that changed their masking rate
        objective += f", masking {', '.join(map(percent_number, rates))} %"
    return ModelInfo(
        name=arm.name,
        label=arm.label,
        # Presets are written as in the paper, `210M`.
        size=size.upper() if size in {"210m", "610m", "1b"} else size,
        parameters=record.parameters,
        objective=objective,
        mask_rate=rates[0] if len(rates) == 1 else None,
        clm_steps=steps["clm"],
        mlm_steps=steps["mlm"],
        total_steps=record.steps,
        start=record.continues,
        continued_steps=record.continued_steps,
        is_final=record.is_final,
        is_finished_encoder=record.is_finished_encoder,
        flops=sum(entry.flops for entry in arm.ledger) if arm.ledger else None,
        # Phases on pairs predict no tokens; their ledger counts texts.
        labels=sum(
            e.supervised_tokens for e in arm.ledger if LOSS_UNITS.get(e.objective, NATS) == NATS
        )
        if arm.ledger
        else None,
        optimizer=next(filter(None, optimizers), ""),
        attention=record.attention or "",
        group=record.group,
        identity=" ".join(filter(None, (record.state, record.attention))),
        replicate_of=recipe,
        pretraining_seeds=tuple(seed for _, seed in sorted(record.seeds.items())),
    )


def _mask_rates(phases: Sequence[PhaseRecord], continued: int) -> list[float]:
    """Return the masking rates in order, without repeats; since the model was continued, if so."""
    rates: list[float | None] = []
    steps = 0
    for phase in reversed(phases):
        if phase.mask_rate is not None:
            rates += [phase.final_mask_rate, phase.mask_rate]
        steps += phase.steps
        if steps == continued:
            break
    known = [rate for rate in reversed(rates) if rate is not None]
    return [rate for rate, _ in groupby(known)]


def replicate_of(record: ArmRecord) -> str:
    """Return the pretraining without its seeds; empty for older files, which lack it."""
    if record.phases is None:
        return ""
    recipe = {name: value for name, value in record.recipe.items() if name != "seeds"}
    phases = [phase.model_dump() for phase in record.phases]
    # Names of models say layers and width alone, and a tuned rate is not in the recipe.
    others = [record.parameters, record.dimensions, record.plugins, record.peak, record.last_peak]
    settings = [record.model, phases, record.continues, record.is_final, recipe, others]
    if record.is_finished_encoder:  # another one may have its name
        settings.append(record.state)
    return digest([*settings, record.attention] if record.attention else settings)


def _hashes(study: StudyRecord) -> Mapping[str, Any]:
    """Return the hashes of tasks' examples, by name; older records have none."""
    data = study.provenance.get("data")
    tasks = data.get("tasks") if isinstance(data, dict) else None
    return tasks if isinstance(tasks, dict) else {}


def _recipes(study: StudyRecord) -> dict[str, str]:
    """Return the pretraining without its seeds of each evaluated state, by its name."""
    recipes = {arm.name: replicate_of(arm) for arm in study.arms}
    states: dict[tuple[str, str], set[str]] = defaultdict(set)
    for arm in study.arms:
        states[recipes[arm.name], digest(arm.seeds)].add(arm.state)
    # Several states from the same seeds: at their step, the rate of a shorter arm decays already.
    mixed = {recipe for (recipe, _), found in states.items() if recipe and len(found) > 1}
    return {
        arm.name: f"{recipes[arm.name]} {recipes.get(arm.arm or '')}"
        if recipes[arm.name] in mixed
        else recipes[arm.name]
        for arm in study.arms
    }


def _example_reader(records: StudyRecords, store: Path) -> ExampleReader:
    """Return a reader of the test examples of the selected runs."""
    metrics = {task.name: task.metric for task in records.tasks}

    def read(model: str, dataset: str) -> ExampleScores:
        paired: dict[int, Sequence[ResultRecord]] = {}
        results = records.selected.get((model, dataset), ())
        if (model, dataset) in records.baselines:
            paired, results = _by_seed(records, model, dataset), records.baselines[model, dataset]
        if not results:
            raise DataError(f"{model} on {dataset}: no run has a score")
        ids, clusters, by_result = read_runs(model, results, metrics[dataset], store)
        by_seed = {result.seed: by_result[result.id] for result in results}
        if paired:
            by_seed = {
                seed: mean_of_runs([by_result[result.id] for result in of])
                for seed, of in paired.items()
            }
        return ExampleScores(ids, by_seed, clusters)

    return read


def read_runs(
    model: str, results: Iterable[ResultRecord], metric: str, store: Path
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, RunExamples]]:
    """Return ids and clusters of the test examples of runs, and their scores by result."""
    ids: tuple[str, ...] | None = None
    clusters: tuple[str, ...] = ()
    by_result: dict[str, RunExamples] = {}
    for result in results:
        where = describe_run(model, result)
        path = Store(store).folder(RESULT, result.id) / EXAMPLES
        run_ids, clusters, by_result[result.id] = read_run(path, metric, result, where)
        if ids is not None and run_ids != ids:
            raise DataError(f"{where}: other test examples than its first seed")
        ids = run_ids
    return ids or (), clusters, by_result


def read_run(
    path: Path, metric: str, result: ResultRecord, where: str
) -> tuple[tuple[str, ...], tuple[str, ...], RunExamples]:
    """Return the ids, clusters and scores of the test examples of a run."""
    try:
        RESULT.open(path.parent, identity=result.id, remedy="skipped").check(path.name)
    except CheckpointError as error:
        raise DataError(f"{where}: {error}") from None
    import pyarrow as pa  # noqa: PLC0415 - slow to load, and most commands read no examples
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        # Loads less of Arrow than `read_table`, and is faster on thousands of small files.
        with pq.ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            needed = [name for name in needed_columns(metric) if name in names]
            shared = [name for name in _CLUSTERS if name in names][:1]
            table = file.read(columns=["split", "id", *shared, *needed])
    except (pa.ArrowException, OSError, KeyError) as error:
        if is_system_fault(error):
            raise
        raise DataError(f"{where}: {EXAMPLES} is damaged ({error})") from None
    columns = table.to_pydict()
    rows = [index for index, split in enumerate(columns["split"]) if split == "test"]
    picked = {name: [column[row] for row in rows] for name, column in columns.items()}
    run = metric_examples(metric, {name: picked[name] for name in needed})
    check_value(run, (result.test or {})[metric], where=where)
    ids, clusters = picked["id"], [cluster for name in shared for cluster in picked[name]]
    if shared == ["paradigm"]:  # one paradigm is all that its task asks about
        is_one = len({*clusters}) == 1
        clusters = [] if is_one else [c or f"pair {i}" for c, i in zip(clusters, ids, strict=True)]
    return tuple(ids), tuple(clusters), run
