"""What reports say of studies, as snapshots: text, marks and tables of the sections named."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fake_study import ARMS, TASKS, FakeStudy, seal_again, write_json
from rich.console import Console

from biphasic.analysis.page.render import render
from biphasic.analysis.records import load_records
from biphasic.analysis.tables.results import format_table, table_csv
from snapshots import compare

Study = tuple[Path, Path]
FIND = ("find", "zs", "Find", "ndcg_at_10", 0.2)
RATE = 1e-4


def made(folder: Path, edit: Callable[[Any], object] = id, **fields: Any) -> Study:
    """Write a study of one task, with one rate, and edit its record."""
    usual = {"steps": 40, "tasks": TASKS[:1], "learning_rates": (RATE,)}
    study, store = FakeStudy(**{**usual, **fields}).write(folder)
    record = json.loads((study / "study.json").read_text())
    edit(record)
    write_json(study / "study.json", record)
    return study, store


def edited_state(study: Study, arm: str, pattern: str, new: str) -> Study:
    """Change the state of an arm."""
    [state] = (one.record.state for one in load_records(*study).arms if one.name == arm)
    path = study[1] / "states" / state / "state.json"
    path.write_text(re.sub(pattern, new, path.read_text()))
    seal_again(path.parent)
    return study


def intermediate(folder: Path) -> Study:
    """The last arm has the highest mean and the lowest loss of MLM."""
    return made(folder, lambda record: record["arms"][-1].update(is_final=False))


def sure(folder: Path) -> Study:
    """MLM is ahead by 20 points on the first task, by next to nothing on the second."""
    levels = {"pydocs-sc": (0.40, 0.60), "pydocs-tc": (0.40, 0.4001)}
    scores = {
        (arm, task, RATE, seed): (levels[task][place] + 0.001 * seed * (2 * place - 1)
                                  + 0.02 * (seed % 2) * (task == "pydocs-tc") * place,) * 2
        for (place, arm), task, seed in product(enumerate(("untrained", "mlm")), levels, range(5))
    }  # fmt: skip
    return made(folder, arms=ARMS[:2], tasks=TASKS[:2], scores=scores)


def no_results(folder: Path) -> Study:
    """Taggers that find nothing, and two seeds whose interval is wider than the scale."""
    scores = {("mlm", "pydocs-sc", RATE, seed): (0.5, 0.4 + 0.5 * seed) for seed in (0, 1)}
    scores |= {("mlm", "pydocs-tc", RATE, seed): (0.0, 0.0) for seed in (0, 1)}
    few = {"data": {"held-out corpus": {"documents": 2}}}
    return made(folder, arms=ARMS[1:2], tasks=TASKS[:2], seeds=(0, 1), scores=scores,
                provenance=few)  # fmt: skip


def level(folder: Path) -> Study:
    """All arms are equal on the first task, and two of three are the best of the second."""
    arms, tasks = ("untrained", "mlm", "clm"), ("pydocs-sc", "pydocs-tc")
    scores = {
        (arm, task, RATE, seed): (0.5, 0.5 if task == tasks[0] or arm != arms[0] else 0.4)
        for arm, task, seed in product(arms, tasks, (0, 1))
    }
    return made(folder, arms=ARMS[:3], tasks=TASKS[:2], seeds=(0, 1), scores=scores)


def settings(folder: Path) -> Study:
    files = {"count": 4, "bytes": 7}
    sources = [{"files": files, "licence": "", "share": None}, {"share": 0.5, "is_open": True}]
    return made(folder, arms=ARMS[:2], seeds=(0,),
                provenance={"data": {"origin": {"sources": sources}}})  # fmt: skip


def tuned(folder: Path, **third_too: Any) -> Study:
    def edit(record: Any) -> None:
        _, mlm, clm, third, fourth = record["arms"]
        mlm |= {"peak": 2e-3, "is_tuned": True, "num_trials": 5}
        clm |= {"peak": 5e-3, "is_tuned": True, "last_peak": 8e-4, "last_trials": 3}
        third |= {"peak": 1e-3, **third_too}
        fourth |= {"peak": 4e-3}
        record["provenance"]["recipe"] = {"learning_rate": {"peak": 1e-3}}

    return made(folder, edit)


def other_rows(folder: Path) -> Study:
    return edited_state(
        made(folder), "mlm", r'"rows_sha256": "\w+"', f'"rows_sha256": "{"f" * 64}"'
    )


def pairs(folder: Path) -> Study:
    """An arm of a phase on tokens and one on texts of pairs."""
    study = made(folder, arms=ARMS[2:4])
    return edited_state(study, ARMS[3][0], '"objective": "mlm"', '"objective": "contrastive"')


def average(folder: Path) -> Study:
    tasks = (TASKS[0], ("other", "sc", "Which module", "accuracy", 0.5))
    return made(folder, tasks=tasks, diverged={("mlm", "other", RATE, 0)})


def problems(folder: Path) -> Study:
    rates = (1e-4, 2e-4, 5e-4)
    missing = {("mlm", "pydocs-ir", rate, seed) for rate in rates for seed in range(5)}
    diverged = {("clm", "pydocs-sc", rate, 1) for rate in rates}
    return made(folder, tasks=TASKS, learning_rates=rates, missing=missing, diverged=diverged)


def paper(folder: Path) -> Study:
    """By the paper's convention, with four seeds of an arm on a task."""
    missing = {("mlm", "pydocs-sc", RATE, 4)}
    return made(folder, convention="paper", tasks=TASKS[:2], missing=missing)


def not_run(folder: Path) -> Study:
    study = made(folder)
    for path in study[1].rglob("*.json*"):
        path.unlink()
    return study


SCENARIOS: dict[str, tuple[Callable[[Path], Study], str]] = {
    "whole": (lambda folder: made(folder, arms=ARMS[:3], learning_rates=(1e-4, 2e-4)), ""),
    "intermediate": (intermediate, "scores comparisons"),
    "clearly-best": (sure, "scores comparisons"),
    "no-results": (no_results, "scores terminal"),
    "level": (level, "scores comparisons"),
    "settings": (settings, "provenance"),
    "tuned": (tuned, "rates"),
    "tuned-all": (lambda folder: tuned(folder, is_tuned=True), "rates"),
    "other-rows": (other_rows, "cost provenance"),
    "pairs": (pairs, "cost"),
    "average": (average, "scores"),
    "problems": (problems, "scores problems"),
    "paper-convention": (paper, "scores terminal"),
    "one-seed": (lambda folder: made(folder, seeds=(0,)), "scores comparisons terminal"),
    "zero-shot": (lambda folder: made(folder, tasks=(FIND,), seeds=(0,), arms=ARMS[:2]), ""),
    "zero-shot-untrained": (
        lambda folder: made(folder, tasks=(FIND,), seeds=(0,), arms=ARMS[:1]), "rates"
    ),
    "not-run": (not_run, ""),
}  # fmt: skip


def text_of(page: str, sections: str) -> str:
    """Return lines of text; the best scores have a star before them, and marks their meaning."""
    page = re.sub(r"<(head|script|style|svg|nav|dialog)\b.*?</\1>", "", page, flags=re.DOTALL)
    if sections:
        found = (re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)
                 for name in sections.split())  # fmt: skip
        page = "\n".join(section[0] for section in found if section)
    for pattern, new in (
        (r'<abbr title="([^"]*)">(.*?)</abbr>', r"\2 [\1]"),
        (r'(<td class="number best"[^>]*>)', r"\1*"),
        (r"\s+", " "),
        (r"</t[hd]>", " | "),
        (r"<small>", " "),
        (r"</dt>", ": "),
        (r"</(?:p|li|tr|h\d|summary|figcaption|ul|table|div|dd)>", "\n"),
        (r"<[^>]*>", ""),
        (r" *\n[ \n|]*", "\n"),
        (r"  +", " "),
    ):
        page = re.sub(pattern, new, page)
    return html.unescape(page).strip() + "\n"


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_a_report_says(tmp_path: Path, name: str) -> None:
    write, sections = SCENARIOS[name]
    records = load_records(*write(tmp_path))
    text = text_of(render(records, store="../store"), sections)
    if "terminal" in sections:
        terminal = io.StringIO()
        Console(file=terminal, width=160).print(format_table(records))
        text += f"\n--- terminal\n{terminal.getvalue()}\n--- table.csv\n{table_csv(records)}"
    text = re.sub(r"(\d\.\d{9})\d+", r"\1", text)  # the last digits are those of a processor
    compare(f"pages/{name}", text, tmp_path, is_made=True)
