"""Steps whose loss or gradient is not finite: what is saved, and going on without them."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest

from biphasic.errors import CheckpointError, ConfigError, DivergedError
from biphasic.files import read_json
from biphasic.store import CHECKPOINT
from biphasic.study.plan.tree import expand
from biphasic.training import loop
from biphasic.training.lineage import Lineage
from biphasic.training.step.input import StepRows
from short_runs import CLM, MLM, assert_same, details, metrics, poison

pytestmark = pytest.mark.slow

FILES = ("model.safetensors", "optimizer.safetensors")


def fault_of(store: Path) -> tuple[Path, dict]:
    (file,) = store.glob("progress/*/faults/*/fault.json")
    return file.parent, json.loads(file.read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_fault_is_described(tmp_path, train, training_data, make_recipe, monkeypatch, precision):
    recipe = make_recipe(CLM, {**MLM, "steps": 6}, precision=precision)
    poison(monkeypatch, recipe, training_data, 5)
    with pytest.raises(DivergedError) as caught:
        train(recipe)
    folder, fault = fault_of(tmp_path)
    assert str(caught.value) == fault["error"]
    assert fault["error"] == (
        "step 5: the loss is not finite; lower the learning rate, or skip the step with "
        "--skip-step 5 (skip_steps: [5] in a recipe or study); the weights before it are saved, "
        f"and {folder} describes it"
    )
    assert caught.value.divergence == "the loss was not finite at step 5"
    assert (fault["format"], fault["step"], fault["phase"]) == ("biphasic.fault/1", 5, 1)
    assert fault["objective"] == recipe.phases[1].determinants(0)
    assert fault["learning_rate"] == 2e-3
    assert (fault["loss"], fault["gradient_norm"]) == ("NaN", "NaN")
    assert fault["again"] == {"loss": "NaN", "gradient_norm": "NaN", "is_finite": False}
    norms = fault["gradient_norms"]
    assert norms["layers"].keys() == {
        "model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head",
    }  # fmt: skip
    assert norms["parameters"]["model.layers.1.mlp.up_proj.weight"] == "NaN"
    assert [line["step"] for line in fault["steps_before"]] == [1, 2, 3, 4, 5]
    lineage = Lineage(recipe, training_data.fingerprint)
    origin = fault["continues_from"]
    assert (origin["step"], origin["identity"]) == (5, lineage.identities[5])
    manifest = CHECKPOINT.open((folder / origin["folder"]).resolve()).verify().manifest
    assert manifest["identity"] == lineage.identities[5]
    rows = fault["rows"]
    batch = StepRows(recipe, training_data).batch(5)
    assert rows["sha256"] == batch.sha256().hex()
    pieces = [piece for row in rows["pieces"] for piece in row.split()]
    assert len(rows["pieces"]) == 4
    assert sorted(pieces) == sorted(
        f"{piece.epoch}:{piece.document}:{piece.start}-{piece.end}" for piece in batch.pieces
    )
    assert fault["recipe"] == recipe.model_dump(mode="json")


def test_running_again_reproduces_a_fault_from_the_weights_before_it(
    tmp_path, train, training_data, make_recipe, monkeypatch
):
    recipe = make_recipe({**CLM, "steps": 8})
    poison(monkeypatch, recipe, training_data, 4)
    clean = train(make_recipe({**CLM, "steps": 4}), "clean")
    steps: list[int] = []
    for _ in range(2):
        with pytest.raises(DivergedError, match="step 4"):
            train(
                recipe,
                options={"report": lambda done: steps.append(done.step)},
            )  # fmt: skip
        (last,) = tmp_path.glob("progress/*/step-*")
        assert all((last / name).read_bytes() == (clean / name).read_bytes() for name in FILES)
    assert steps == [1, 2, 3, 4]  # the second run began with the fault


@pytest.mark.parametrize(
    ("how", "what", "again"),
    [
        (lambda loss: loss + math.inf, "loss", ("Infinity", True)),
        (lambda loss: loss * 1e30 * loss * 1e30, "loss", ("Infinity", False)),
        # sqrt has no gradient at 0: the loss alone stays finite.
        (lambda loss: loss + (loss * 0).sqrt(), "gradient", (None, False)),
    ],
    ids=["loss alone", "both", "gradient alone"],
)
def test_neither_loss_nor_gradient_may_be_not_finite(
    tmp_path, train, training_data, make_recipe, monkeypatch, how, what, again
):
    """Losses are read at steps 3 and 6, to save them, so an update runs after the bad one."""
    recipe = make_recipe({**CLM, "steps": 6})
    poison(monkeypatch, recipe, training_data, 4, how=how)
    clean = train(make_recipe({**CLM, "steps": 4}), "clean")
    with pytest.raises(DivergedError, match=f"step 4: .*{what} is not finite"):
        train(
            recipe, options={"checkpoint_every": 3}, read_back_every=100,
        )  # fmt: skip
    assert not (tmp_path / "states").exists()
    _, last = sorted(tmp_path.glob("progress/*/step-*"))
    assert last.name == "step-00000004"
    assert all((last / name).read_bytes() == (clean / name).read_bytes() for name in FILES)
    kept, wanted = (read_json(folder / "state.json") for folder in (last, clean))
    assert all(kept[key] == wanted[key] for key in ("identity", "step", "rows_sha256", "ledger"))
    assert [line["step"] for line in metrics(last)] == [1, 2, 3, 4]
    _, fault = fault_of(tmp_path)
    loss, norm_is_finite = again
    assert fault["loss"] == fault["again"]["loss"]
    assert fault["loss"] == loss if loss else isinstance(fault["loss"], float)
    assert isinstance(fault["again"]["gradient_norm"], float) == norm_is_finite
    assert fault["again"]["is_finite"] is False


def test_a_fault_that_does_not_come_again_says_so(tmp_path, train, make_recipe, monkeypatch):
    original, calls = loop.pass_loss, []

    def once(model, given, **options):
        calls.append(1)
        return original(model, given, **options) * (math.nan if len(calls) == 3 else 1.0)

    monkeypatch.setattr(loop, "pass_loss", once)
    recipe = make_recipe({**CLM, "steps": 4})
    with pytest.raises(DivergedError, match=r"computed again it was finite"):
        train(recipe)
    _, fault = fault_of(tmp_path)
    assert fault["loss"] == "NaN"
    assert fault["again"]["is_finite"]
    resumed = train(recipe)
    lines = [line for line in metrics(resumed) if "loss" in line]
    assert fault["again"]["loss"] == lines[2]["loss"]
    assert fault["again"]["gradient_norm"] == pytest.approx(lines[2]["gradient_norm"], rel=1e-6)
    monkeypatch.setattr(loop, "pass_loss", original)
    assert_same(resumed, train(recipe, "whole"))


def test_the_first_step_needs_no_checkpoint(
    tmp_path, train, training_data, make_recipe, monkeypatch
):
    recipe = make_recipe(CLM)
    poison(monkeypatch, recipe, training_data, 0)
    with pytest.raises(DivergedError, match="step 0"):
        train(recipe)
    assert not list(tmp_path.glob("progress/*/step-*"))
    _, fault = fault_of(tmp_path)
    assert fault["continues_from"]["folder"] is None


@pytest.mark.parametrize("start", [0, 3])
def test_a_step_is_skipped(train, make_recipe, start):
    """Its rows are read, its weights are those before it, and the rest goes on as planned."""
    recipe = make_recipe({**CLM, "steps": 4}, MLM).skipping([start])
    whole = make_recipe({**CLM, "steps": 4}, MLM)
    skipped, usual = (train(each) for each in (recipe, whole))
    one, other = (read_json(folder / "state.json") for folder in (skipped, usual))
    assert one["recipe"] == {**other["recipe"], "skip_steps": [start]}
    assert one["rows_sha256"] == other["rows_sha256"]
    for mine, theirs in zip(one["ledger"], other["ledger"], strict=True):
        same = ("phase", "objective", "steps", "documents", "tokens")
        assert all(mine[key] == theirs[key] for key in same)
    assert one["ledger"][0]["flops"] < other["ledger"][0]["flops"]
    assert one["ledger"][0]["supervised_tokens"] < other["ledger"][0]["supervised_tokens"]
    lines = [line for line in metrics(skipped) if "loss" in line]
    assert [line["step"] for line in lines] == [step for step in range(1, 8) if step != start + 1]
    usual_lines = [line for line in metrics(usual) if "loss" in line]
    assert lines[:start] == usual_lines[:start]
    for name in ("learning_rate", "tokens"):
        expected = [line[name] for line in usual_lines if line["step"] != start + 1]
        assert [line[name] for line in lines] == expected


def test_nothing_changes_in_a_skipped_step(train, make_recipe):
    recipe = make_recipe({**CLM, "steps": 4}).skipping([3])
    before = train(make_recipe(CLM))
    after = train(recipe, options={"checkpoint_every": 1})
    assert all((before / name).read_bytes() == (after / name).read_bytes() for name in FILES)


@pytest.mark.parametrize("objective", ["mlm", "mntp"])
def test_a_step_in_which_no_token_is_masked_makes_no_update(train, make_recipe, objective):
    """Its weights are those before it, and a line names it."""
    none = {"objective": objective, "steps": 2, "mlm_probability": 1e-9}
    warnings: list[str] = []
    before = train(make_recipe(CLM))
    after = train(make_recipe(CLM, none), options={"checkpoint_every": 1, "warn": warnings.append})
    assert all((before / name).read_bytes() == (after / name).read_bytes() for name in FILES)
    entry = read_json(after / "state.json")["ledger"][1]
    assert (entry["steps"], entry["supervised_tokens"], entry["flops"]) == (2, 0, 0)
    assert entry["tokens"] > 0
    tokens = r"\d+ tokens; use larger batches or a higher masking rate"
    for step, line in zip((3, 4), warnings, strict=True):
        assert re.fullmatch(
            rf"step {step} makes no update: {objective} got no label from its {tokens}", line
        )


def test_a_mixture_without_labels_makes_no_update(train, make_recipe):
    rare = [{"objective": name, "mlm_probability": 1e-9} for name in ("mlm", "mntp")]
    none = {"objective": "mix", "objectives": rare, "shares": [0.5, 0.5], "steps": 1}
    before, after = train(make_recipe(CLM)), train(make_recipe(CLM, none))
    assert all((before / name).read_bytes() == (after / name).read_bytes() for name in FILES)


@pytest.mark.parametrize("every", [1, 100])
def test_a_run_goes_on_without_the_steps_where_it_stopped(
    train, training_data, make_recipe, monkeypatch, every
):
    """Steps 3 (the first of a phase that resets moments and extends rows) and 5 are bad."""
    later = {"optimizer_state": "reset", "max_seqlen": 64, "rope_theta": 2e4}
    phases = {**CLM, "steps": 3}, {**MLM, "steps": 5, **later}
    recipe = make_recipe(*phases, max_seqlen=48)
    poison(monkeypatch, recipe, training_data, 3, 5)
    done: list[int] = []
    options = {"report": lambda step: done.append(step.step)}
    for step in (3, 5):
        with pytest.raises(DivergedError, match=f"--skip-step {step} "):
            train(recipe, options=options, read_back_every=every)
        recipe = recipe.skipping([step])
    state = train(recipe, options=options, read_back_every=every)
    assert [step for step in done if step > 3] == [5, 7, 8] if every == 1 else [7, 8]
    assert_same(state, train(recipe, "whole"))
    assert details(state)["recipe"]["skip_steps"] == [3, 5]


def test_a_damaged_checkpoint_of_the_run_that_stopped_is_named(
    tmp_path, train, training_data, make_recipe, monkeypatch
):
    recipe = make_recipe({**CLM, "steps": 4})
    poison(monkeypatch, recipe, training_data, 2)
    with pytest.raises(DivergedError):
        train(recipe)
    (last,) = tmp_path.glob("progress/*/step-*")
    weights = last / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError) as caught:
        train(recipe.skipping([2]))
    assert str(caught.value).startswith(f"{weights}: damaged")
    assert str(caught.value).endswith(f"delete the folder {last} and run again")
    shutil.rmtree(last)
    assert train(recipe.skipping([2])).is_dir()


def test_skipped_steps_change_identities_from_there_on(training_data, make_recipe):
    def identities(*skipped: int) -> list[str]:
        lineage = Lineage(recipe.skipping(skipped), training_data.fingerprint)
        assert expand(lineage).root == lineage.identities[0]
        return lineage.identities

    recipe = make_recipe({**CLM, "steps": 4}, MLM)
    usual, one, two = identities(), identities(2), identities(4, 2, 2)
    assert one[:3] == usual[:3]
    assert not set(one[3:]) & set(usual)
    assert two[:5] == one[:5]
    assert not set(two[5:]) & {*usual, *one}


@pytest.mark.parametrize("step", [-1, 3])
def test_a_step_to_skip_exists(training_data, make_recipe, step):
    with pytest.raises(ConfigError, match=f"skip_steps: .* step {step}; .* 0 to 2"):
        Lineage(make_recipe(CLM).skipping([step]), training_data.fingerprint)


def test_a_run_that_skips_nothing_is_written_as_before(make_recipe):
    assert "skip_steps" not in make_recipe(CLM).model_dump(mode="json")
    written = make_recipe(CLM, skip_steps=[2, 1, 2]).model_dump(mode="json")
    assert written["skip_steps"] == [1, 2]
