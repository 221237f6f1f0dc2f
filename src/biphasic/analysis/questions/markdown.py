"""A registration as a page that can be committed where others see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from biphasic.analysis.questions.text import rule_sentence
from biphasic.analysis.text import flat, listing
from biphasic.records import ForecastRecord, QuestionRecord, RegistrationRecord


def registration_page(title: str, records: Sequence[RegistrationRecord]) -> str:
    """Return the page of the last registration, with the dates of all of them."""
    return "\n".join(_lines(title, records)) + "\n"


def _lines(title: str, records: Sequence[RegistrationRecord]) -> Iterator[str]:
    last = records[-1]
    yield from (f"# Registration: {cell(title)}", "")
    for one in records:
        what = "Amended" if one.amends else "Registered"
        changes = f"; changed: {listing([*one.changed])}" if one.changed else ""
        scores = f"scores of its arms then: {one.num_scores}"
        yield f"- {what} {one.registered}, hash `{one.id}`, {scores}{changes}"
    yield ""
    for raw in last.fixed["questions"]:
        yield from _question(QuestionRecord.model_validate(raw), last)
    yield from _table("Arms", ("Arm", "Steps", "State"), (
        (name, str(arm.get("steps", 0)), f"`{arm['state'][:12]}`")
        for name, arm in last.fixed["arms"].items()
    ))  # fmt: skip
    yield from _table("Tasks", ("Task", "Metric", "Train", "Test"), (
        (name, task["metric"], str(task["num_train"]), str(task["num_test"]))
        for name, task in last.fixed["tasks"].items()
    ))  # fmt: skip
    rates = ", ".join(f"{rate:g}" for rate in last.fixed["grid"]["learning_rates"])
    seeds = ", ".join(map(str, last.fixed["seeds"]))
    yield f"Fine-tuning rates: {rates}. Fine-tuning seeds: {seeds}."
    yield from ("", "Code: " + ", ".join(f"{name} `{value}`" for name, value in last.code.items()))


def _question(question: QuestionRecord, record: RegistrationRecord) -> Iterator[str]:
    yield from (f"## {cell(question.name)}. {cell(question.question)}", "")
    yield from (rule_sentence(question), "")
    points = {
        (one.comparison, one.task): f"{one.points:.1f}"
        for one in record.detectable
        if one.question == question.name
    }
    yield "| Difference | Task | Forecast (90 % interval) | Detectable |"
    yield "|---|---|---|---|"
    for place, one in enumerate(question.comparisons):
        label = f"{one.first[0]} − {one.second[0]}"
        if one.minus:
            label = f"({label}) − ({one.minus[0][0]} − {one.minus[1][0]})"
        for task in one.tasks:
            found = points.get((place, task), "–")
            yield f"| {cell(label)} | {cell(task)} | {expected(one.forecast)} | {found} |"
    known = f"“Detectable” assumes {record.spread_from}." if points else "No spread was assumed."
    yield from ("", f"Percentage points. {known}", "")


def _table(title: str, heads: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield from (f"## {title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
    for row in rows:
        yield f"| {' | '.join(map(cell, row))} |"
    yield ""


def expected(forecast: ForecastRecord | None) -> str:
    """Write a forecast with its 90 % interval."""
    if forecast is None:
        return "–"
    low, high = forecast.interval
    return f"{forecast.difference:+g} ({low:+g} to {high:+g})"


def cell(text: str) -> str:
    """Escape a text for a cell of a table."""
    return flat(text).replace("|", "\\|").replace("<", "&lt;")
