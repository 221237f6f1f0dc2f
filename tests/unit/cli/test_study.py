"""`biphasic study plan`, `diff` and `schema` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from fake_study import ARMS, TASKS, FakeStudy

from biphasic.study.sizing import estimate

COMMAND = ["study"]

STUDIES = Path(__file__).parents[3] / "studies"


def test_without_a_rate_a_plan_is_for_this_machine(run, monkeypatch):
    monkeypatch.setattr(estimate, "speed_here", lambda _: estimate.Speed(2e9, 3, "fp32 is faster"))
    _, plan, _ = run("plan", STUDIES / "smoke.yaml")
    assert "Hours here, 3 jobs at once, 2e+09 FLOP/s each, measured for a second" in plan
    assert "--rate 2e9" not in plan
    assert plan.endswith("\nfp32 is faster\n")
    # Three jobs at 2e9 take the time of one device at 6e9.
    _, there, _ = run("plan", STUDIES / "smoke.yaml", "--rate", "6e9")
    hours = re.compile(r"^ +([\d.<]+ ?[\d.]* h)  (training and fine-tuning)$", re.MULTILINE)
    assert hours.findall(plan)
    assert hours.findall(plan) == hours.findall(there)


def test_a_plan_as_json_is_nothing_but_json(run):
    code, out, _ = run("plan", STUDIES / "smoke.yaml", "--json", "--graph", "smoke.mmd")
    assert code == 0
    plan = json.loads(out)
    assert plan["rate"] == 2e9
    assert (plan["format"], plan["name"], plan["num_final"]) == ("biphasic.plan/1", "smoke", 5)


def test_the_schema_is_json(run):
    code, out, _ = run("schema")
    assert code == 0
    assert "evaluation_points" in json.loads(out)["properties"]


@pytest.mark.parametrize(
    ("option", "num_gpus", "message"),
    [
        ("--per-gpu", 0, "--per-gpu: there is no GPU for 2 jobs to share"),
        ("--workers", 1, "2 workers: there are 1 GPUs"),
    ],
)
def test_slots_that_the_machine_lacks_are_refused_before_any_work(
    run, tmp_path, monkeypatch, option, num_gpus, message
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    code, _, err = run("run", STUDIES / "smoke.yaml", option, "2", "--root", tmp_path / "root")
    assert (code, message in err) == (2, True)
    assert not (tmp_path / "root").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_report_counts_its_problems(run, tmp_path):
    study, store = FakeStudy(steps=20, arms=ARMS[1:2], tasks=TASKS[:1]).write(tmp_path)
    one, other, *_ = sorted(store.glob("finetunes/*/manifest.json"))
    for path, message in ((one, "1 problem, listed"), (other, "2 problems, listed")):
        path.unlink()
        code, _, err = run("report", study)
        assert (code, err.splitlines()[-1].startswith(message)) == (0, True)
