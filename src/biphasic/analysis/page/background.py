"""Facts, problems and provenance for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from biphasic.analysis.records import Problem, StudyRecords
from biphasic.analysis.tables.summary import finetunings, trained_segments
from biphasic.analysis.text import amount, csv_text, duration, rate

_KINDS = {
    "missing": "Missing",
    "diverged": "Diverged",
    "damaged": "Damaged",
    "mixed": "Inconsistent",
}
_MOST_STATES = 20


def facts(records: StudyRecords) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page."""
    segments = [segment for segment, _ in trained_segments(records)]
    results = finetunings(records)
    seconds = sum(part.seconds for part in segments) + sum(part.seconds for part in results)
    numbers = [
        (f"{len(records.arms):,}", "arms"),
        (f"{len(records.tasks):,}", "tasks"),
        (f"{len(records.study.seeds):,}", "seeds"),
        (f"{len(results):,}", "fine-tunings"),
    ]
    if segments:
        numbers.append((amount(sum(part.tokens for part in segments)), "tokens trained"))
    return [*numbers, (duration(seconds), "compute time")]


def problem_groups(problems: Sequence[Problem]) -> dict[str, list[str]]:
    """Return the texts of problems by the title of their kind; unknown kinds keep their name."""
    texts: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for problem in problems:
        texts.setdefault(problem.kind, []).append(problem.text)
    return {_KINDS.get(kind, kind.capitalize()): found for kind, found in texts.items() if found}


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
