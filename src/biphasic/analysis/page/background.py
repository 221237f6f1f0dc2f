"""Facts, problems and provenance for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from biphasic.analysis.records import Problem, StudyRecords
from biphasic.analysis.tables.summary import finetunings, segment_rows
from biphasic.analysis.text import amount, csv_text, duration, rate

_KINDS = {
    "missing": "Missing",
    "diverged": "Diverged",
    "damaged": "Damaged",
    "mixed": "Inconsistent",
}
_MOST_PROBLEMS = 100
"""Maximum problems of each kind on the page; `problems.csv` has all."""
_MOST_STATES = 20


@dataclass(frozen=True)
class ProblemGroup:
    """Problems of one kind; the page lists the first."""

    title: str
    number: int
    texts: tuple[str, ...]

    @property
    def rest(self) -> int:
        """Number of problems that are not listed."""
        return self.number - len(self.texts)


def facts(records: StudyRecords) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page."""
    segments = segment_rows(records)
    results = finetunings(records)
    seconds = sum(row.segment.seconds for row in segments) + sum(r.seconds for r in results)
    numbers = [
        (f"{len(records.arms):,}", "arms"),
        (f"{len(records.tasks):,}", "tasks"),
        (f"{len(records.study.seeds):,}", "seeds"),
        (f"{len(results):,}", "fine-tunings"),
    ]
    if segments:
        numbers.append((amount(sum(row.segment.tokens for row in segments)), "tokens trained"))
    return [*numbers, (duration(seconds), "compute time")]


def problem_groups(problems: Sequence[Problem]) -> list[ProblemGroup]:
    """Group problems by kind; unknown kinds keep their own name."""
    texts: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for problem in problems:
        texts.setdefault(problem.kind, []).append(problem.text)
    titles = {kind: _KINDS.get(kind, kind.capitalize()) for kind in texts}
    return [
        ProblemGroup(titles[kind], len(of_kind), tuple(of_kind[:_MOST_PROBLEMS]))
        for kind, of_kind in texts.items()
        if of_kind
    ]


def problems_csv(problems: Sequence[Problem]) -> str:
    """Write every problem with its kind."""
    return csv_text(("kind", "text"), ((problem.kind, problem.text) for problem in problems))


def provenance(records: StudyRecords) -> list[tuple[str, list[tuple[str, str]]]]:
    """Flatten provenance into groups of names and values; scalars at the top come first."""
    study = records.study
    general = [
        ("name", study.name),
        ("statistics", f"convention '{study.convention}'"),
        ("learning rates", ", ".join(rate(value) for value in study.learning_rates)),
        ("fine-tuning seeds", ", ".join(str(seed) for seed in study.seeds)),
    ]
    groups = []
    for name, value in study.provenance.items():
        if isinstance(value, dict):
            groups.append((_readable(name), list(_flatten(value))))
        else:
            general.append((_readable(name), _value(value)))
    if len(records.arms) <= _MOST_STATES:
        general += [(f"{arm.label}: state", arm.record.state) for arm in records.arms]
    return [("study", general), *groups]


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        path = f"{prefix}{_readable(str(name))}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{path} · ")
        else:
            yield path, _value(value)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value)
    if value is None or value == {}:
        return "–"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _readable(name: str) -> str:
    return name.replace("_", " ")
