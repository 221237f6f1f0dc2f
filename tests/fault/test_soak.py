"""A few faults change nothing (`make soak` injects hundreds); its page is what it recorded."""

import dataclasses
import json
import random

import pytest
import torch
from safetensors.torch import save

from soak.faults import FAULTS
from soak.run import PAGE, RECORD, inject, page
from soak.subjects import differences, make_subjects, soaking

# Each kind of fault once, and those of processes in both commands.
SHORT = (
    "pretraining: power loss",
    "switch of phases: SIGTERM",
    "checkpoints: SIGKILL before a random change of files",
    "checkpoints: a flipped bit",
    "checkpoints: disk full",
    "fine-tuning: SIGKILL before a random change of files",
    "fine-tuning: SIGTERM at a random moment",
    "fine-tuning: read-only",
)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="forks its processes, as CUDA cannot")
def test_a_few_faults_change_nothing(tmp_path):
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
    assert sum(struck > 0 for struck, _ in outcomes.values()) >= 5, outcomes


def content_of_a_state(scale: float = 1.0) -> dict:
    """What the soak compares, with a sum whose rounding changes it by a factor."""
    line = {"step": 1, "loss": 6.25 * scale, "learning_rate": 1e-3, "tokens": 256}
    heldout = {"clm": 5.5 * scale, "mlm": 6.5}
    tensor = torch.ones(4, 4) * scale
    return {
        "states/a/metrics.jsonl": [line, {"step": 1, "heldout": heldout}],
        "states/a/state.json": {
            "rows_sha256": "12",
            "ledger": [{"phase": 0, "tokens": 256}],
            "heldout": dict(heldout),
            "compute": {"processes": 1 if scale == 1.0 else 4},
        },
        "states/a/model.safetensors": save({"weight": tensor}),
        "states/a/optimizer.safetensors": save({"weight.exp_avg": tensor}),
        "states/a/tokenizer.json": b"{}",
    }


STATE_FILES = ("metrics.jsonl", "model.safetensors", "optimizer.safetensors", "state.json")


@pytest.mark.parametrize(("scale", "rounded"), [(1 + 2e-6, ()), (1 + 2e-5, STATE_FILES)])
def test_another_number_of_processes_may_only_round_sums(scale, rounded):
    expected, found = content_of_a_state(), content_of_a_state(scale)
    assert differences(found, expected, is_rounded=True) == [f"states/a/{n}" for n in rounded]
    assert differences(found, expected) == [f"states/a/{name}" for name in STATE_FILES]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state.json", lambda record: record["ledger"][0].update(tokens=257)),
        ("state.json", lambda record: record.update(rows_sha256="13")),
        ("state.json", lambda record: record["heldout"].update(clm=5.501)),
        ("state.json", lambda record: record["heldout"].pop("mlm")),
        ("metrics.jsonl", lambda lines: lines[0].update(loss=6.2502)),
        ("metrics.jsonl", lambda lines: lines[0].update(loss=float("nan"))),
        ("metrics.jsonl", lambda lines: lines[0].update(learning_rate=1.000001e-3)),
        ("metrics.jsonl", lambda lines: lines[0].update(tokens=255)),
        ("metrics.jsonl", lambda lines: lines[1]["heldout"].update(mlm=6.501)),
        ("metrics.jsonl", lambda lines: lines.pop()),
    ],
)
def test_what_is_counted_and_larger_differences_are_reported(name, change):
    found = content_of_a_state()
    change(found[f"states/a/{name}"])
    assert differences(found, content_of_a_state(), is_rounded=True) == [f"states/a/{name}"]


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": torch.full((4, 4), 1.0001)},
        {"weight": torch.full((4, 4), float("nan"))},
        {"weight": torch.ones(16)},
        {"weight": torch.ones(4, 4), "bias": torch.zeros(4)},
    ],
)
def test_other_weights_are_reported(tensors):
    found = content_of_a_state() | {"states/a/model.safetensors": save(tensors)}
    expected = content_of_a_state()
    assert differences(found, expected, is_rounded=True) == ["states/a/model.safetensors"]


def test_other_files_are_reported():
    found, expected = content_of_a_state(), content_of_a_state()
    del found["states/a/model.safetensors"]
    found |= {"states/a/tokenizer.json": b"{ }", "unfinished store/progress/a": ""}
    names = [
        "states/a/model.safetensors",
        "states/a/tokenizer.json",
        "unfinished store/progress/a",
    ]
    assert differences(found, expected, is_rounded=True) == names


def test_the_page_shows_its_record():
    message = (
        "write it anew: make soak, or with its record: python -m soak.run --page-only in tests/"
    )
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(record), message
    rows = [(row["where"], row["fault"]) for row in record["faults"]]
    assert rows == [(fault.where, fault.kind) for fault in FAULTS], message
    assert not record["problems"]
    assert all(0 < row["injected"] == row["equal"] for row in record["faults"])
    assert sum(row["injected"] for row in record["faults"]) >= 200
