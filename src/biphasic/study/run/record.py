"""`study.json`, with arms, tasks and runs for reports without torch, and the job of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from biphasic.analysis.report import is_current, write_report
from biphasic.data.building.config import short_corpus_name
from biphasic.data.building.gather import unique_names
from biphasic.errors import DataError
from biphasic.execution.job import Job, Progress, Report, ShouldStop, WorkItem, never
from biphasic.facts import facts_to_record
from biphasic.files import digest, read_json, write_json
from biphasic.model.loading.footprint import stored_parameters
from biphasic.model.shape import Architecture
from biphasic.plugins import named_plugins
from biphasic.records import (
    STUDY,
    ArmRecord,
    CompareRecord,
    PhaseRecord,
    QuestionRecord,
    RunRecord,
    StudyRecord,
    TaskRecord,
)
from biphasic.shown import Shown
from biphasic.study.inputs.corpus import phase_corpora
from biphasic.study.inputs.tasks import PlannedTask, num_seen
from biphasic.study.plan.cost import parameters_of
from biphasic.study.plan.plan import Plan, PlannedArm, PlannedPoint
from biphasic.study.resolve import ResolvedStudy, resolve
from biphasic.study.settings.arms import Name, family_of, model_name
from biphasic.study.settings.study import StudyConfig
from biphasic.study.study import Study
from biphasic.tasks.kinds.registry import KINDS
from biphasic.training.metrics_log import environment
from biphasic.training.recipe import PretrainedModel
from biphasic.training.state import find_state
from biphasic.training.timeline import PlacedPhase

_IN_RECORD = {"objective", "steps", "mlm_probability", "final_mlm_probability"}


def study_record(resolved: ResolvedStudy) -> StudyRecord:
    """Return `study.json` without `provenance.environment`, which the writer adds."""
    # Reading the hardware requires torch, and a report that is up to date is not rewritten.
    plan, config = resolved.plan, resolved.study.config
    tasks = tuple(task.info.name for task in plan.tasks)
    usual = {task.training.protocol.attention for task in plan.tasks}
    grids = {
        (point.name, name): runs
        for point in plan.points
        for group in plan.groups_of(point)
        for name, runs in group.runs.items()
    }
    return StudyRecord(
        format="biphasic.study/1",
        name=config.name,
        title=config.title,
        description=config.description,
        convention=config.convention,
        arms=tuple(
            arm_record(point, _segments_of(point, plan), usual=usual) for point in plan.points
        ),
        tasks=tuple(_task_record(task, plan) for task in plan.tasks),
        learning_rates=config.finetuning.learning_rates,
        extend=config.finetuning.extend,
        seeds=config.finetuning.seeds_of(plan.arms[0].recipe.seeds),
        compare=tuple(
            CompareRecord(first=first, second=second, tasks=planned.tasks or tasks)
            for planned, (first, second) in zip(config.compare, config.compared(), strict=True)
        ),
        questions=tuple(question_records(config, tasks)),
        runs=tuple(
            RunRecord(arm=point.name, task=task, **run.model_dump())
            for point in plan.points
            for task in tasks
            for run in grids[point.name, task]
        ),
        baselines=tuple(
            RunRecord(
                id=one.id, arm=one.name, task=one.task.info.name, learning_rate=0.0, seed=one.seed
            )
            for one in plan.baselines
        ),
        heldout_sha256=resolved.data and resolved.data.heldout.content_hash,
        provenance=_provenance(resolved),
    )


def arm_record(
    point: PlannedPoint, segments: tuple[str, ...] = (), *, usual: Collection[str] = ()
) -> ArmRecord:
    """Return the record of one evaluated state, to which `segments` lead."""
    # An arm that sets the only attention of the tasks, `usual`, is like those that set none.
    recipe, arm = point.arm.recipe, point.arm.config
    begun = [placed for placed in recipe.placed_phases if placed.start < point.step]
    model = arm.encoder or recipe.model
    continues, continued_steps = _continuation(model, begun, point.step)
    last = point.arm.tuned_last if point.is_final else None
    return ArmRecord(
        name=point.name,
        label=point.label,
        family=point.family,
        state=point.state,
        steps=point.step,
        segments=segments,
        arm=arm.name,
        is_final=point.is_final,
        group=arm.group,
        is_finished_encoder=arm.encoder is not None,
        model=model_name(model),
        dimensions=model.model_dump() if isinstance(model, Architecture) else {},
        parameters=_parameters(point.arm),
        phases=tuple(_phase_record(placed, min(point.step, placed.end)) for placed in begun),
        plugins=tuple(each.phase.plugin.reference for each in begun if each.phase.plugin),
        continues=continues,
        continued_steps=continued_steps,
        recipe={name: value for name, value in arm.recipe.items() if name != "model"},
        seeds=recipe.seeds.model_dump(),
        attention=None if usual == {point.attention} else point.attention,
        peak=begun[0].schedule.peak if begun else None,
        is_tuned=point.arm.tuned is not None,
        num_trials=point.arm.tuned and point.arm.tuned.trials,
        last_peak=last and last.peak,
        last_trials=last and last.trials,
    )


def _segments_of(point: PlannedPoint, plan: Plan) -> tuple[str, ...]:
    """Return the segments that lead to a state, as trained or else as planned."""
    segments: list[str] = []
    current: str | None = point.state if point.step else None
    while current:
        segments.insert(0, current)
        state = find_state(plan.store, current)
        current = state.parent if state else plan.parents.get(current)
    return tuple(segments)


def _phase_record(placed: PlacedPhase, end: int) -> PhaseRecord:
    """Describe a phase up to a step of the run."""
    first, last = (placed.objective(step).mask_rate for step in (placed.start, end - 1))
    steps = Counter(placed.objective(step).short_name for step in range(placed.start, end))
    phase = placed.phase
    settings = phase.model_dump(mode="json", exclude=_IN_RECORD, exclude_defaults=True)
    folders = {name: own.name for name in settings if isinstance(own := getattr(phase, name), Path)}
    corpus = {"corpus": short_corpus_name(phase.corpus)} if phase.corpus else {}
    return PhaseRecord(
        objective=phase.short_name,
        steps=end - placed.start,
        steps_by_objective=dict(steps),
        settings=settings | folders | corpus,
        # Fields that do not apply are omitted from the file.
        **({} if first is None else {"mask_rate": first}),
        **({} if last == first else {"final_mask_rate": last}),
    )


def _continuation(model: object, begun: list[PlacedPhase], step: int) -> tuple[str | None, int]:
    """Return the finished model that training continued from, and the number of steps since."""
    # A model is finished when its schedule has decayed and another one begins; the last one counts.
    for before, placed in zip(reversed(begun[:-1]), reversed(begun[1:]), strict=True):
        if placed.schedule_start == placed.start and before.schedule.decay_steps:
            objectives = family_of([earlier.phase for earlier in begun[: placed.index]])
            return objectives, step - placed.start
    if isinstance(model, PretrainedModel):
        return model_name(model), step
    return None, 0


def _parameters(arm: PlannedArm) -> int | None:
    """Count parameters without the head; None for a pretrained model that is not here."""
    model = arm.config.encoder or arm.recipe.model
    if isinstance(model, PretrainedModel):
        folder = arm.encoder.folder if arm.encoder else Path(model.pretrained)
        return stored_parameters(folder) if folder.is_dir() else None
    counted = parameters_of(arm.recipe, vocab_size=arm.vocab_size)
    return None if counted is None else counted.body + counted.embeddings


def _task_record(task: PlannedTask, plan: Plan) -> TaskRecord:
    seen = num_seen(plan.store, plan.fingerprint, task)
    return TaskRecord(
        name=task.info.name,
        kind=task.info.kind,
        title=task.info.title,
        metric=task.info.metric,
        num_train=task.num_examples["train"],
        num_validation=task.num_examples["validation"],
        num_test=task.num_examples["test"],
        trained_on=None if task.trainer is None else task.trainer.info.name,
        overlaps=dict(task.info.overlaps),
        **({} if seen is None else {"num_seen": seen}),
        about=facts_to_record(
            task.info.kind, task.training.protocol.facts(KINDS[task.info.kind].facts)
        ),
    )


def question_records(config: StudyConfig, tasks: tuple[str, ...]) -> Iterator[QuestionRecord]:
    """Yield the questions of a study, with the evaluated states of each comparison."""
    for question, arms in zip(config.questions, config.asked(), strict=True):
        raw = question.model_dump(include={"name", "question", "supported_if", "margin"})
        comparisons = [
            {
                "first": of.arms[0],
                "second": of.arms[1],
                "tasks": asked.tasks or tasks,
                "minus": of.minus,
                "forecast": asked.forecast and asked.forecast.model_dump(),
            }
            for asked, of in zip(question.comparisons, arms, strict=True)
        ]
        against = question.counts_against_if.model_dump()
        yield QuestionRecord.model_validate(
            {**raw, "comparisons": comparisons, "against_if": against}
        )


def _provenance(resolved: ResolvedStudy) -> dict[str, Any]:
    config, data = resolved.study.config, resolved.data
    tasks = {task.info.name: task.info.sha256 for task in resolved.plan.tasks}
    described: dict[str, Any] = {"data": {"tasks": tasks}}
    if data is not None:
        corpora = {"training corpus": data.corpus, "held-out corpus": data.heldout}
        of_phases = phase_corpora(resolved.study.recipes.values())
        names = unique_names([short_corpus_name(corpus) for corpus in of_phases.values()])
        for name, own in zip(names, of_phases, strict=True):
            corpora[f"corpus of phases, {name}"] = data.corpora[own]
        described["data"] = {
            **{
                name: {
                    "documents": len(corpus),
                    "tokens": corpus.num_tokens,
                    "content hash": corpus.content_hash,
                }
                for name, corpus in corpora.items()
            },
            "tokenizer": {"vocabulary": data.tokenizer.vocab_size, "hash": data.tokenizer.sha256},
            "tasks": tasks,
            "origin": resolved.paths.origin(),
        }
        described["recipe"] = config.recipe.model_dump(mode="json")
    plugins = named_plugins(config.corpus, *(arm.recipe for arm in resolved.plan.arms))
    return {
        **described,
        **({"plugins": plugins} if plugins else {}),
        "finetuning": config.finetuning.model_dump(mode="json"),
        "settings_sha256": settings_digest(config),
    }


def settings_digest(config: StudyConfig) -> str:
    """Return the digest of all settings of a study."""
    return digest(config.model_dump(mode="json"))


def write_study_report(resolved: ResolvedStudy) -> Path:
    """Write `study.json` and the report, unless both are up to date; return the report's path."""
    folder, store = resolved.study.folder, resolved.study.store
    record = study_record(resolved).model_dump(mode="json", exclude_unset=True)
    if _written(folder) == record and is_current(folder, store):
        return folder / "report" / "report.html"
    _write_record(folder, record)
    return write_report(folder, store)


def refresh_record(resolved: ResolvedStudy) -> None:
    """Write `study.json`, and the report if there is one, if the study is new or was edited."""
    # Jobs may take hours: 'study report' needs the record meanwhile, and after an interruption.
    study = resolved.study
    try:
        known = read_json(study.folder / STUDY)["provenance"]["settings_sha256"]
    except (DataError, KeyError, TypeError):
        known = None
    if known == settings_digest(study.config):
        return
    if (study.folder / "report").is_dir():
        write_study_report(resolved)
    else:
        record = study_record(resolved).model_dump(mode="json", exclude_unset=True)
        _write_record(study.folder, record)


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    record["provenance"] = {"environment": environment(), **record["provenance"]}
    write_json(folder / STUDY, record)


def _written(folder: Path) -> Any:
    """Return `study.json` without the hardware; None if it is not readable."""
    try:
        record = read_json(folder / STUDY)
        del record["provenance"]["environment"]
    except (DataError, KeyError, TypeError):
        return None
    return record


class ReportJob(Job):
    """Write a report."""

    kind: Literal["report"] = "report"
    id: str  # Depends on the study's name only: a report may be written again.
    study: Name  # Name of the study; its folder is a sibling of the store.

    @classmethod
    def of(cls, study: Study) -> ReportJob:
        """Return the job that reports a study."""
        name = study.config.name
        return cls(
            id=f"report-{digest(name)[:32]}",
            label=f"report of {name}",
            store=study.store,
            study=name,
        )

    def outputs(self) -> list[Path]:
        """Return its output folder."""
        return [self.store.parent / self.study]

    def is_done(self) -> bool:
        """Return False: `run` itself skips an up-to-date report."""
        return False

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:  # noqa: ARG002
        """Write the report, unless it is up to date."""
        study = Study.saved(self.store.parent / self.study)
        console = Console(quiet=True)
        resolved = resolve(study, missing="build", console=console)
        resolved.compute_baselines(console=console)
        write_study_report(resolved)
        report(Progress(1, 1, ""))


@dataclass(frozen=True, repr=False)
class StudyJobs(Shown):
    """What `jobs` returns: the missing jobs of a study, saved in its store."""

    study: Study
    items: tuple[WorkItem, ...]
    report: ReportJob

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each job; `needs` is `-` for no job and `*` for all others."""
        names = {item.id for item in self.items}
        rows = [
            {
                "id": item.id,
                "kind": item.kind,
                "processes": item.num_slots,
                "needs": item.needs if item.needs in names else "-",
                "label": item.label,
            }
            for item in self.items
        ]
        last = {"kind": "report", "processes": 1, "needs": "*", "label": self.report.label}
        return [*rows, {"id": self.report.id, **last}] if rows else rows

    def lines(self) -> Iterator[str]:
        """Return the table with tabs, for schedulers."""
        return ("\t".join(map(str, row.values())) for row in self.table())
