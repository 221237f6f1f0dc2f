"""A dozen faults change nothing (`make soak` injects hundreds); its page is what it recorded."""

import json
import random

import pytest
import torch

from soak.faults import FAULTS
from soak.run import PAGE, RECORD, inject, page
from soak.subjects import make_subjects, soaking

SUBJECTS = ("pretraining", "scheduling", "finished")
SHORT = (
    "pretraining: SIGTERM at a random moment",
    "pretraining: power loss",
    "switch of phases: SIGKILL",
    "switch of phases: SIGTERM",
    "checkpoints: SIGKILL before a random change of files",
    "checkpoints: a flipped bit",
    "checkpoints: disk full",
    "checkpoints: read-only",
    "scheduling: SIGKILL to all processes",
    "scheduling: SIGKILL to the scheduler alone",
    "scheduling: SIGKILL before a random change of files",
    "finished folders",
)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="forks its processes, as CUDA cannot")
def test_a_dozen_faults_change_nothing(tmp_path):
    chosen = [
        next(each for each in FAULTS if f"{each.where}: {each.kind}".startswith(name))
        for name in SHORT
    ]
    with soaking():
        subjects = make_subjects(tmp_path / "subjects", SUBJECTS)
        outcomes = {
            name: inject(fault, subjects[fault.subject], tmp_path / "trial", random.Random(name))  # noqa: S311
            for name, fault in zip(SHORT, chosen, strict=True)
        }
    assert {name: problem for name, (_, problem) in outcomes.items() if problem} == {}
    # A moment may slip by, because the run was over; most do not depend on time.
    assert sum(struck > 0 for struck, _ in outcomes.values()) >= 7, outcomes


def test_the_page_shows_its_record():
    told = "write it anew: make soak, or with its record: python -m soak.run --page-only in tests/"
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(record), told
    rows = [(row["where"], row["fault"]) for row in record["faults"]]
    assert rows == [(fault.where, fault.kind) for fault in FAULTS], told
    assert not record["problems"]
    assert all(0 < row["injected"] == row["equal"] for row in record["faults"])
    assert sum(row["injected"] for row in record["faults"]) >= 200
