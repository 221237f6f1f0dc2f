"""What functions about plans of studies return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from biphasic.shown import Shown

if TYPE_CHECKING:
    from biphasic.execution.job import WorkItem
    from biphasic.records import RegistrationRecord
    from biphasic.study.plan.plan import Plan
    from biphasic.study.plan.summary import PlanSummary
    from biphasic.study.run.report import ReportJob
    from biphasic.study.study import Study

_POWERS = {"power_of_forecast": "the forecast", "power_of_level": "a difference of 0 level"}


@dataclass(frozen=True, repr=False)
class StudyPlan(Shown):
    """What `plan` returns: what a study will train, share and skip.

    Attributes:
        plan: Arms, states, and fine-tunings.
        summary: Counts and costs.
        rate: FLOP/s per device that hours are computed with.
        example_tokens: Assumed mean tokens of a fine-tuning example.
        memory: Bytes of a process of the largest training; 0 if unknown.
        jobs_here: Jobs at once on this machine, if the rate was measured here.
        advice: A sentence about the precision of this machine; empty for none.
    """

    plan: Plan
    summary: PlanSummary
    rate: float
    example_tokens: int
    memory: int
    jobs_here: int | None
    advice: str

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each arm: its steps, and those that no earlier arm trains."""
        new = self.plan.new_steps()
        return [
            {
                "arm": arm.name,
                "group": arm.config.group,
                "steps": arm.recipe.total_steps,
                "new_steps": new[arm.name],
            }
            for arm in self.plan.arms
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the plan with its states, as `--json` prints it."""
        from biphasic.study.plan.summary import summary_json

        return summary_json(self.summary, self.plan, rate=self.rate, memory=self.memory)

    def lines(self) -> Iterator[str]:
        """Return arms, costs and what is done."""
        from biphasic.study.plan.summary import plan_lines

        yield from plan_lines(
            self.summary,
            self.plan,
            rate=self.rate,
            example_tokens=self.example_tokens,
            memory=self.memory,
            jobs_here=self.jobs_here,
        )
        if self.advice:
            yield self.advice

    def drawing(self) -> str:
        """Return the graph of arms and shared states."""
        from biphasic.study.plan.svg import plan_svg

        return plan_svg(self.plan, title=self.plan.study.config.title)


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


@dataclass(frozen=True, repr=False)
class Registered(Shown):
    """What `register` returns: the registration of a study, with its amendments.

    Attributes:
        title: Of the study.
        records: The first registration and its amendments, the newest last.
    """

    title: str
    records: tuple[RegistrationRecord, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the detectable difference of each comparison, and its power with a margin."""
        return [
            {
                "question": one.question,
                "comparison": one.comparison + 1,
                "task": one.task,
                "points": one.points,
                **one.model_dump(include={"power_of_forecast", "power_of_level"}),
            }
            for one in self.records[-1].detectable
        ]

    def to_markdown(self) -> str:
        """Return the page of the registration, to commit."""
        from biphasic.analysis.page.markdown import registration_page

        return registration_page(self.title, self.records)

    def lines(self) -> Iterator[str]:
        """Return the hash, what an amendment changed, and what the study can detect."""
        last = self.records[-1]
        yield f"{'amended' if last.amends else 'registered'} {last.registered}: {last.id}"
        if last.amends:
            yield f"changed: {', '.join(last.changed)}; scores of its arms then: {last.num_scores}"
        for row in self.table():
            place = f"{row['question']}, comparison {row['comparison']}, {row['task']}"
            powers = (
                f"; {100 * row[name]:.0f} % power to find {what}"
                for name, what in _POWERS.items()
                if name in row
            )
            yield f"{place}: detects {row['points']:.1f} points{''.join(powers)}"
