"""Questions on real records: the answers that docs/replication/README.md has from its script."""

import json
import re
import tarfile
from pathlib import Path

import pytest

from biphasic.analysis.page.evidence import study_answers
from biphasic.analysis.records import load_study

PAGE = Path(__file__).parents[3] / "docs/replication"
TASKS = ["sst2", "trec", "uner_en", "scifact"]
CLM, MLM = "nano-clm-2400-seed{}", "nano-mlm40-2400-seed{}"
QUESTIONS = {
    "Q1": [("nano-clm-600-mlm40-2400-seed{}", MLM), ("nano-clm-1200-mlm40-2400-seed{}", MLM)],
    "Q2": [(MLM, CLM)],
    "Q3": [(f"{CLM}-300", f"{MLM}-300"), (f"{CLM}-300", f"{MLM}-300", CLM, MLM)],
    "Q4": [("nano-clm-dec2400-mlm40-3k-seed{}", "nano-mlm40-dec2400-mlm40-3k-seed{}")],
    "Q7": [(MLM, CLM, "pico-mlm40-2400-seed{}", "pico-clm-2400-seed{}")],
}
ANSWERS = {"Q1": "supported", "Q2": "counts against", "Q4": "supported", "Q7": "undecided"}


def comparison(*arms):
    first, second, *minus = ([arm.format(run) for run in (1, 2, 3)] for arm in arms)
    return {"first": first, "second": second, "tasks": TASKS, "minus": minus or None}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    root = tmp_path_factory.mktemp("replication")
    with tarfile.open(PAGE / "records.tar.gz") as tar:
        tar.extractall(root, filter="data")
    path = root / "replication/study.json"
    rules = {
        "supported_if": {"clear_for": 2, "clear_against": 0},
        "against_if": {"clear_against": 2},
    }
    questions = [
        {
            "name": name,
            "question": name,
            "comparisons": [comparison(*one) for one in asked],
            **rules,
        }
        for name, asked in QUESTIONS.items()
    ]
    path.write_text(json.dumps({**json.loads(path.read_text()), "questions": questions}))
    found = study_answers(load_study(root / "replication", root / "store"))
    return {answer.question.name: answer for answer in found}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_of_the_study_file_has_the_numbers_of_the_page(answers, name):
    text = (PAGE / "README.md").read_text()
    section = text[text.index(f"**{name}. ") :].split("\n**Q", 1)[0]
    rows = re.findall(
        r"^\|[^|]+\| (\w+) \| (\S+) \((\S+) to (\S+)\) \| (\S+) \| (?:clear)? *\| (\S+) \|",
        section,
        re.MULTILINE,
    )
    assert rows == [
        (
            one.dataset,
            f"{one.test.contrast.mean:+.2f}",
            *(f"{end:+.2f}" for end in one.test.contrast.interval),
            f"{one.p_corrected:.3f}",
            f"{one.detectable:.1f}",
        )
        for one in answers[name].outcomes
    ]


def test_rules_that_count_comparisons_give_the_answers_of_the_page(answers):
    # Q3's rule asks for the same tasks in two comparisons, which counts cannot say.
    assert {name: answers[name].verdict for name in ANSWERS} == ANSWERS
