"""The speed of this machine, measured by a small model, and what plans say of it."""

import itertools
import os
import subprocess
import time

import pytest

from biphasic.config import parse_config
from biphasic.errors import StudyError
from biphasic.evaluation import evaluate
from biphasic.evaluation.evaluate import expected_time
from biphasic.model.cpu.products import products
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.loading.hub import LocalModel
from biphasic.model.shape import PRESETS, ModelShape
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.study.plan.plan import NO_CORPUS, plan_study
from biphasic.study.sizing import speed
from biphasic.study.sizing.estimate import least_memory, speed_here
from biphasic.study.sizing.speed import Measured, measure_speed
from biphasic.study.study import Study
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import TaskInfo
from biphasic.training.compute import ComputeConfig
from biphasic.training.recipe import Recipe
from tiny_study import tiny_study


def test_speed_is_the_flops_of_a_pass_over_its_time(monkeypatch, one_thread, tmp_path):
    # A quarter of a second between two looks at the clock: two passes in each precision.
    seconds, masked = itertools.count(0.0, 0.25), []
    # Passes of fp32 take a quarter of the processor time of bf16's, the second one twice as long.
    own = itertools.accumulate((2.0, 0, 0.5, 0, 2.0, 0, 1.0), initial=0.0)
    update_flops = ModelShape.update_flops

    def spy(shape, rows, **given):
        masked.append(given["supervised_tokens"])  # as the objective chooses them
        return update_flops(shape, rows, **given)

    monkeypatch.setattr(ModelShape, "update_flops", spy)
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(time, "process_time", lambda: next(own))
    products()  # is measured by the same clock
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    measured = measure_speed("bf16")
    assert measured == measure_speed("bf16")  # it is kept: the clock has no more times
    # 2,048 tokens in rows of 256. Four layers of width 192, with four matrices of attention and
    # three of 512 features; attention reads all 256 positions.
    body = 4 * (4 * 192 * 192 + 3 * 192 * 512)
    head = 192 * 8192
    attention = 2 * 2 * 256 * 192 * 4
    # Each pass takes 0.25 seconds.
    flops = 3 * (2048 * (2 * body + attention) + 2 * head * masked[0])
    assert measured[:2] == pytest.approx((flops / 0.25, 4))


@pytest.mark.parametrize(
    ("days", "load", "is_again"),
    [(0, 4.0, False), (13, 0.5, False), (15, 0.5, True), (-1, 0.5, True), (0, 4.1, True)],
)
def test_an_old_speed_or_one_under_load_is_measured_again(
    monkeypatch, one_thread, tmp_path, days, load, is_again
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    clock = itertools.count(0.0, 0.25)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    first = measure_speed("fp32")
    monkeypatch.setattr(time, "time", lambda: first.at + 24 * 3600 * days + 1)
    assert (measure_speed("fp32") != first) == is_again


def test_another_process_measures(monkeypatch):
    seen = {}

    class Done:
        returncode, stderr = 0, ""
        stdout = 'printed as Python starts\n{"flops_per_second": 1.5e10, "num_jobs": 2}\n'

    def run(command, **settings):
        seen.update(settings, command=command)
        return Done

    monkeypatch.setattr(subprocess, "run", run)
    assert speed_here("bf16") == (1.5e10, 2, "")
    assert seen["command"][1:] == ["-P", "-m", speed.__name__, "bf16"]
    assert seen["env"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("precision", "gain", "advice"),
    [
        ("bf16", 1.5, "precision: fp32 would be 1.5 times as fast on this processor"),
        ("fp32", 2.0, "precision: bf16 would be 2.0 times as fast on this processor"),
        ("bf16", 1.1, ""),
        ("fp32", 0.7, ""),
    ],
)
def test_a_clearly_faster_precision_is_named(precision, gain, advice):
    assert speed.precision_advice(precision, Measured(1e9, gain)) == advice


def test_a_failed_measurement_is_one_line(monkeypatch):
    class Failed:
        returncode, stdout, stderr = 1, "", "Traceback\nImportError: no torch\n"

    monkeypatch.setattr(subprocess, "run", lambda *_, **__: Failed)
    with pytest.raises(StudyError, match=r"\(ImportError: no torch\); give --rate"):
        speed_here("fp32")


def test_adapting_says_how_long_it_takes(monkeypatch, tmp_path):
    special = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}
    config = architecture_config(
        PRESETS["nano"], vocab_size=8192, max_seqlen=256, special_ids=special
    )
    config.save_pretrained(tmp_path)
    raw = {
        "model": {"pretrained": str(tmp_path)}, "max_seqlen": 256, "rows_per_step": 8,
        "learning_rate": {"peak": 1e-3}, "phases": [{"objective": "mlm", "steps": 2000}],
    }  # fmt: skip
    recipe = parse_config(Recipe, raw, where="test")
    # 102 of 256 tokens are predicted; see above.
    row = 3 * (256 * (2 * 4 * (4 * 192 * 192 + 3 * 192 * 512) + 2 * 2 * 256 * 192 * 4))
    row += 3 * 2 * 192 * 8192 * 102
    monkeypatch.setattr(speed, "precision_advice", lambda *_: "")
    monkeypatch.setattr(
        speed, "measure_speed", lambda *_: Measured(8 * row / 4, 1)
    )  # a step in 4 seconds
    for processes, message in ((1, "2.2 hours on this machine, at 510 tokens/s"),
                            (2, "67 minutes on this machine, at 1,000 tokens/s")):  # fmt: skip
        compute = ComputeConfig(processes=processes)
        found = speed.cost_here(recipe, start=0, vocab_size=8192, compute=compute).split("; ")
        assert found[0] == f"about {message}, measured for a second"
        # 3.4 million parameters of the body and the head, 1.6 of the input: 16 bytes for each.
        assert found[1].startswith("at least 78.")
        assert found[2].endswith(" on disk")


def test_the_speed_of_an_adaptation_is_measured_at_its_width(monkeypatch, tmp_path):
    special = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}
    shape = PRESETS["nano"].model_copy(update={"hidden_size": 384, "intermediate_size": 768})
    config = architecture_config(shape, vocab_size=8192, max_seqlen=256, special_ids=special)
    config.save_pretrained(tmp_path)
    raw = {
        "model": {"pretrained": str(tmp_path)}, "max_seqlen": 256, "rows_per_step": 8,
        "learning_rate": {"peak": 1e-3}, "phases": [{"objective": "mlm", "steps": 2000}],
    }  # fmt: skip
    measured = []

    def make(config, **options):
        measured.append(config.hidden_size)
        return new_model(config, **options)

    monkeypatch.setattr(speed, "new_model", make)
    monkeypatch.setattr(speed, "measure_speed", measure_speed)
    monkeypatch.setattr(speed, "_SECONDS", 0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = parse_config(Recipe, raw, where="test")
    assert speed.cost_here(recipe, start=0, vocab_size=8192, compute=ComputeConfig())
    assert {*measured} == {384}


def test_training_of_more_than_a_minute_is_measured(monkeypatch):
    monkeypatch.setattr(speed, "measure_speed", lambda *_: Measured(2e10, 1.5))
    raw = {"model": "nano", "learning_rate": {"peak": 1e-3}}
    short, long = (
        parse_config(
            Recipe, {**raw, "phases": [{"objective": "clm", "steps": steps}]}, where="test"
        )
        for steps in (100, 1000)
    )
    # 4e10 FLOPs a step: 2,048 tokens, six times 1.8 million weights and 1.6 million of the head.
    compute = ComputeConfig()
    assert not speed.cost_here(short, start=0, vocab_size=8192, compute=compute)
    time, memory, disk, advice = speed.cost_here(
        long, start=0, vocab_size=8192, compute=compute
    ).split("; ")
    assert time.startswith("about 36 minutes on this machine, at 940 tokens/s")
    assert memory.startswith("about 1.")
    assert memory.endswith("GB of memory")
    assert disk.endswith("MB on disk")
    assert advice == "precision: fp32 would be 1.5 times as fast on this processor"
    shared, whole = (
        least_memory(
            long,
            vocab_size=8192,
            compute=ComputeConfig(processes=2, shard=shard),
            is_gpu=False,
        )
        for shard in ("full", "none")
    )
    # Half of the fp32 weights and both moments of 3.4 million parameters are elsewhere.
    assert shared < whole - 1e7
    late = speed.cost_here(long, start=999, vocab_size=8192, compute=compute)
    assert not late


@pytest.mark.parametrize(("workers", "message"), [(1, "2 minutes"), (2, "80 seconds")])
def test_fine_tuning_says_how_long_it_takes_at_most(monkeypatch, tmp_path, workers, message):
    special = {"bos": 0, "eos": 1, "pad": 2, "mask": 3}
    architecture_config(
        PRESETS["nano"], vocab_size=8192, max_seqlen=256, special_ids=special
    ).save_pretrained(tmp_path)
    protocol = FinetuneProtocol(max_steps=100, max_seqlen=64)
    task = PlannedTask(
        TaskInfo("t", "sc", "T", "accuracy", "0" * 64),
        folder=tmp_path, protocol=protocol, num_examples={"train": 320}, epoch=320,
    )  # fmt: skip
    study = Study(tiny_study({"name": "m", "encoder": {"pretrained": "m"}}), tmp_path)
    encoders = {"m": LocalModel(tmp_path, "0" * 64, None)}
    plan = plan_study(study, NO_CORPUS, (task,), encoders=encoders)
    body = 4 * (4 * 192 * 192 + 3 * 192 * 512)
    monkeypatch.setattr(evaluate, "precision_advice", lambda *_: "fp32 is faster")
    monkeypatch.setattr(
        evaluate, "measure_speed", lambda _: Measured(6 * body * 10 * 32 * 64 / 40, 1)
    )
    # Three runs of ten steps of 32, 40 seconds each; with two workers, two of them run at once.
    assert expected_time(plan, 3, num_workers=workers) == (
        f"about {message} on this machine, measured for a second, if texts have 64 tokens, less if "
        "they are shorter; scoring is not counted; at least 53.5 MB of memory for each run, and "
        "13.4 MB on disk; fp32 is faster"
    )
