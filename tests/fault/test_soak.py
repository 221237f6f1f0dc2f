"""A dozen faults change nothing (`make soak` injects hundreds); its page is what it recorded."""

import dataclasses
import json
import random

import pytest
import torch

from soak.faults import FAULTS
from soak.run import PAGE, RECORD, inject, page
from soak.subjects import make_subjects, soaking

SHORT = (
    "pretraining: power loss",
    "switch of phases: SIGTERM",
    "checkpoints: SIGKILL before a random change of files",
    "checkpoints: a flipped bit",
    "checkpoints: disk full",
    "checkpoints: read-only",
    "fine-tuning: SIGKILL before a random change of files",
    "fine-tuning: SIGTERM at a random moment",
    "fine-tuning: SIGKILL to all processes",
    "fine-tuning: disk full",
    "fine-tuning: power loss",
    "fine-tuning: read-only",
)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="forks its processes, as CUDA cannot")
def test_a_dozen_faults_change_nothing(tmp_path):
    by_name = {f"{each.where}: {each.kind}": each for each in FAULTS}
    chosen = [
        dataclasses.replace(
            next(by_name[name] for name in by_name if name.startswith(short)), times=1
        )
        for short in SHORT
    ]
    with soaking():
        subjects = make_subjects(tmp_path / "subjects", {each.subject for each in chosen})
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
