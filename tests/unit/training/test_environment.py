"""What a run says when it continues under other versions or hardware."""

import pytest

from biphasic import numerics
from biphasic.errors import StoppedError
from biphasic.records import StateRecord
from biphasic.training import metrics_log as environment_module
from biphasic.training.compute import ComputeConfig
from biphasic.training.metrics_log import changed_settings, environment
from biphasic.training.state import STATE_FORMAT
from short_runs import CLM, details

COMPUTE = ComputeConfig().model_dump(mode="json")


def changed(compute: dict | None = None, **values) -> str:
    """Describe the changes since a record with some other values."""
    before = record({**environment(), **values}, {**COMPUTE, **(compute or {})})
    return changed_settings(before, COMPUTE)


def record(environment: dict, compute: dict, **values) -> StateRecord:
    """Return the record of a state."""
    return StateRecord(
        format=STATE_FORMAT,
        identity="ab" * 32,
        step=1,
        rows_sha256="cd" * 32,
        environment=environment,
        compute=compute,
        **values,
    )


def test_what_can_change_numbers_is_named_with_both_values():
    now = environment()
    libraries = {**now["libraries"], "torch": "2.12.0", "transformers": "5.0.0"}
    assert changed(libraries=libraries) == (
        f"torch 2.12.0 -> {now['libraries']['torch']}, "
        f"transformers 5.0.0 -> {now['libraries']['transformers']}"
    )
    assert changed(threads=64, device="cuda:1", accelerator="NVIDIA H100") == (
        f"threads 64 -> {now['threads']}, device cuda -> cpu, accelerator NVIDIA H100 -> none"
    )
    assert changed(instruction_set="VSX", numerics_version=1) == (
        f"numerics version 1 -> 2, instruction set VSX -> {now['instruction_set']}"
    )
    assert changed(products="other") == f"products other -> {now['products']}"
    compute = {
        "processes": 8, "compile": True, "max_tokens_per_pass": 512, "predicted_only": False,
        "cpu_kernels": False,
    }  # fmt: skip
    assert changed(compute) == (
        "processes 8 -> 1, max tokens per pass 512 -> none, compile True -> False, "
        "predicted only False -> True, cpu kernels False -> True"
    )


def test_what_changes_no_number_is_not_named():
    now = environment()
    libraries = {**now["libraries"], "scipy": "1.0"}
    assert changed() == ""
    assert changed(libraries=libraries, python="3.9", cores=999, biphasic="0", processor="x") == ""
    assert changed({"activation_checkpointing": True, "read_back_every": 7}) == ""
    # Records of earlier versions have fewer settings.
    assert changed_settings(record({}, {}), COMPUTE) == ""


def test_other_code_is_named_and_listed_code_is_not(monkeypatch):
    known = {"pretraining": {"2": ["a" * 64, "b" * 64]}}
    monkeypatch.setattr(numerics, "known_code", lambda: known)
    for module in (numerics, environment_module):
        monkeypatch.setattr(module, "running_code", lambda _: "b" * 64)
    assert changed_settings(record({}, {}, code=["a" * 64]), COMPUTE) == ""
    before = record({}, {}, code=["a" * 64, "c" * 64])
    assert changed_settings(before, COMPUTE) == f"code {'c' * 12} -> {'b' * 12}"


@pytest.mark.slow
def test_a_resumed_run_says_what_changed_and_records_it(train, make_recipe):
    recipe, warned = make_recipe({**CLM, "steps": 4}), []

    def stopped_after(steps: int) -> dict:
        asked = iter([*[False] * (steps - 1), True])
        return {"should_stop": lambda: next(asked, False), "warn": warned.append}

    for limit in (64, 128, 128):
        with pytest.raises(StoppedError):
            train(
                recipe,
                options=stopped_after(1), max_tokens_per_pass=limit,
            )  # fmt: skip
    state = train(recipe, options={"warn": warned.append})
    changes = [
        "step 1: max tokens per pass 64 -> 128",
        "step 3: max tokens per pass 128 -> none",
    ]
    assert details(state)["changes"] == changes
    assert warned == [f"{text}; from here on, numbers may differ" for text in changes]


@pytest.mark.slow
def test_a_run_under_the_same_conditions_records_nothing(train, make_recipe):
    assert "changes" not in details(train(make_recipe(CLM)))
