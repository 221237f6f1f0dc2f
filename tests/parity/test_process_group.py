"""Two ranks, or three, train what one process does: the same rows, masks, losses and weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from safetensors.torch import load_file

from biphasic.distributed import ProcessGroup
from biphasic.errors import ConfigError, StoppedError
from biphasic.files import read_json
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import TrainingData
from biphasic.training.run import first_model
from biphasic.training.step.input import StepInput, StepInputs
from process_ranks import process_outcomes
from short_runs import CLM, MIX, MLM, assert_same, metrics, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

BERT = {**MLM, "replacement": "bert"}
SPARSE = {"objective": "mlm", "steps": 6, "mlm_probability": 0.015}
FROZEN = {**BERT, "freeze": ["model.layers.0.*"], "optimizer_state": "reset"}
SCHEDULE = {"peak": 2e-3, "warmup_steps": 2, "decay_steps": 2}
FP32 = {"learning_rate": SCHEDULE, "precision": "fp32"}
BF16 = {**FP32, "precision": "bf16"}

# What each ranks trains, as (phases, changes of the recipe, how it is run).
RUNS: dict[str, tuple[list[dict], dict, dict]] = {
    "fp32": ([CLM, BERT], FP32, {"heldout_every": 2}),
    # By these masks every step has a label, and some ranks have none.
    "sparse": ([SPARSE], {**FP32, "seeds": {"mask_seed": 4}}, {}),
    "mix": ([MIX], {**FP32, "rows_per_step": 7}, {"compute": {"max_tokens_per_pass": 64}}),
    "passes": ([CLM, BERT], BF16, {"compute": {"max_tokens_per_pass": 32}}),
    "muon": ([CLM, FROZEN], {**FP32, "optimizer": {"name": "muon"}}, {"heldout_every": 2}),
    "twice": ([CLM, BERT], FP32, {"compute": {"activation_checkpointing": True}}),
}
# Of weights in fp32, relative. Muon's iterations enlarge the rounding of small singular values, at
# most by 3.4445**5 = 485.
ROUNDING = {"muon": 1e-4}
FULL = {"shard": "full"}
HYBRID = {"shard": "hybrid", "shard_size": 2}


def sharded(name: str, shard: dict[str, Any]) -> tuple[list[dict], dict, dict]:
    """Return a run of `RUNS` with divided weights."""
    phases, changes, how = RUNS[name]
    return phases, changes, {**how, "compute": {**how.get("compute", {}), **shard}}


SHARDED = {
    f"sharded {name}": sharded(name, FULL)
    for name in ("fp32", "sparse", "mix", "muon", "twice", "passes")  # Muon's has frozen weights
}


def recipe_of(make_recipe: Callable, name: str):
    phases, changes, _ = RUNS[name.removeprefix("sharded ")]
    return make_recipe(*phases, **changes)


def alone(recipe, data: TrainingData, store: Path, **options: Any) -> Path:
    compute = options.pop("compute", {})
    return train(recipe, data, store, options={"heldout_every": 2, **options}, **compute)


def stop_after(steps: int) -> Callable[[], bool]:
    made = iter(range(1, steps + 1))
    return lambda: next(made) == steps


@pytest.fixture(scope="module")
def base(tmp_path_factory, worker_id) -> Path:
    """A folder that all test processes share, so that each ranks runs once."""
    folder = tmp_path_factory.getbasetemp()
    return (folder if worker_id == "master" else folder.parent) / "process groups"


def outcomes_once(base: Path, data: TrainingData, ranks: int, make_runs: Callable) -> dict:
    """Return the outcomes of runs by name; the first test process that asks trains them."""
    with FileLock(f"{base}-{ranks}.lock"):
        known = base / f"{ranks}.json"
        if not known.is_file():
            outcomes = process_outcomes(base / f"{ranks}", data, make_runs(), ranks=ranks)
            known.write_text(json.dumps(outcomes))
        return json.loads(known.read_text())


@pytest.fixture(scope="module")
def of_two(base, training_data, make_recipe) -> dict[str, list[dict]]:
    """What two ranks made of all runs, and of some that are interrupted or fail."""

    def runs() -> list[dict]:
        # One process stops after three steps; the process group goes on.
        stopped = make_recipe(CLM, BERT, **FP32)
        with pytest.raises(StoppedError, match="stopped after 3 steps"):
            alone(stopped, training_data, base / "begun", should_stop=stop_after(3))
        return runs_of_two(base, make_recipe)

    return outcomes_once(base, training_data, 2, runs)


def describing(base: Path, make_recipe: Callable) -> Callable[..., dict]:
    """Return what describes a run of `RUNS` or `SHARDED` for `process_outcomes`."""

    def described(name: str, label: str, store: str, *, begun: str = "", **more: Any) -> dict:
        if begun:
            more["begun"] = str(base / begun)
        recipe = recipe_of(make_recipe, name).model_dump(mode="json")
        how = {**RUNS, **SHARDED}[name][2]
        return {"name": label, "recipe": recipe, "store": str(base / store), **how, **more}

    return described


def runs_of_two(base: Path, make_recipe: Callable) -> list[dict]:
    described = describing(base, make_recipe)
    wild = make_recipe({**CLM, "steps": 8}, learning_rate={"peak": 1e38})
    return [
        *(described(name, name, f"of-two-{name}") for name in [*RUNS, *SHARDED]),
        described("sharded fp32", "sharded left", "sharded-left", stop_at=2),
        described("sharded fp32", "sharded resumed", "sharded-resumed", begun="sharded-left"),
        described("sharded muon", "muon left", "muon-left", stop_at=2),
        described("fp32", "left", "left", stop_at=4),
        described("fp32", "resumed", "resumed", begun="left"),
        described("fp32", "taken over", "begun"),
        described("fp32", "found", "of-two-fp32"),
        described("fp32", "other weights", "other", other_weights=1),
        {
            "name": "wild",
            "recipe": wild.model_dump(mode="json"),
            "store": str(base / "wild"),
            "checkpoint_every": 1,
        },
    ]


@pytest.fixture(scope="module")
def of_three(base, training_data, make_recipe) -> dict[str, list[dict]]:
    """Three ranks share four rows."""
    described = describing(base, make_recipe)
    return outcomes_once(base, training_data, 3, lambda: [described("fp32", "whole", "three")])


@pytest.fixture(scope="module")
def of_four(base, of_two, training_data, make_recipe) -> dict[str, list[dict]]:
    """Four ranks go on from where two ranks stopped, and divide the weights over two each.

    `test_contrastive.py` has four ranks that divide them over all.
    """

    described = describing(base, make_recipe)
    runs = [
        described("fp32", "grown", "grown", begun="sharded-left", compute=HYBRID),
        described("muon", "muon grown", "muon-grown", begun="muon-left", compute=HYBRID),
    ]
    return outcomes_once(base, training_data, 4, lambda: runs)


@pytest.fixture(scope="module")
def references(make_recipe, training_data, tmp_path_factory) -> Callable[[str], Path]:
    """Return the state that one process makes of a run; trained once."""
    made: dict[str, Path] = {}

    def reference(name: str) -> Path:
        if name not in made:
            compute = RUNS[name][2].get("compute", {})
            recipe = recipe_of(make_recipe, name)
            store = tmp_path_factory.mktemp("alone")
            every = RUNS[name][2].get("heldout_every", 0)
            made[name] = alone(recipe, training_data, store, compute=compute, heldout_every=every)
        return made[name]

    return reference


def state_of(outcomes: list[dict]) -> Path:
    states = {outcome.get("state") for outcome in outcomes}
    assert len(states) == 1, outcomes
    return Path(states.pop())


def assert_equal(one: Path, other: Path) -> None:
    """To the last bit, but for times."""
    assert_same(one, other)
    first, second = (read_json(each / "state.json") for each in (one, other))
    assert first["compute"] == second["compute"]


def assert_close(one: Path, other: Path, *, loss: float, weights: float) -> None:
    """All that is counted is equal; losses and weights are so but for rounding."""
    first, second = (read_json(each / "state.json") for each in (one, other))
    for key in ("identity", "rows_sha256", "ledger", "step", "recipe", "ground"):
        assert first[key] == second[key], key
    for line, again in zip(metrics(one), metrics(other), strict=True):
        floats = line.keys() & {"loss", "gradient_norm", "heldout"}
        assert all(line[key] == again[key] for key in line.keys() - floats)
        for key in floats - {"gradient_norm"}:
            assert again[key] == pytest.approx(line[key], rel=loss)
    tensors, others = (load_file(each / "model.safetensors") for each in (one, other))
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        difference = float((tensor - others[name]).norm() / tensor.norm())
        assert difference <= weights, (name, difference)


@pytest.mark.parametrize("name", ["fp32", "sparse", "mix", "muon", "twice"])
def test_two_ranks_train_what_one_process_does(of_two, references, name):
    expected = references(name)
    found = state_of(of_two[name])
    assert_close(expected, found, loss=1e-5, weights=ROUNDING.get(name, 1e-5))
    assert read_json(found / "state.json")["compute"]["processes"] == 2


def test_two_ranks_in_bf16_differ_by_its_rounding(of_two, references):
    assert_close(references("passes"), state_of(of_two["passes"]), loss=2e-3, weights=2e-2)


def test_only_the_first_rank_reports(of_two):
    first, second = of_two["fp32"]
    assert (first["reported"], second["reported"]) == ([1, 2, 3, 4, 5, 6], [])


def test_activations_computed_twice_are_exact_in_a_process_group_too(of_two):
    one, other = (state_of(of_two[name]) for name in ("fp32", "twice"))
    names = ("model.safetensors", "optimizer.safetensors")
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_a_stopped_process_group_resumes_as_if_it_had_not_stopped(of_two, base):
    assert all(
        outcome["error"] == "StoppedError: stopped after 4 steps; run again to resume"
        for outcome in of_two["left"]
    )
    assert_equal(state_of(of_two["resumed"]), state_of(of_two["fp32"]))
    assert [each["reported"] for each in of_two["resumed"]] == [[5, 6], []]
    assert not list((base / "resumed/progress").iterdir())


def test_one_process_resumes_where_a_process_group_stopped(
    of_two, base, references, make_recipe, training_data, tmp_path
):
    shutil.copytree(base / "left/progress", tmp_path / "progress")
    steps: list[int] = []
    recipe = recipe_of(make_recipe, "fp32")
    found = alone(recipe, training_data, tmp_path, report=lambda done: steps.append(done.step))
    assert steps == [5, 6]
    assert_close(references("fp32"), found, loss=1e-5, weights=1e-5)


def test_a_process_group_resumes_where_one_process_stopped(of_two, references):
    outcomes = of_two["taken over"]
    assert outcomes[0]["reported"] == [4, 5, 6]
    assert_close(references("fp32"), state_of(outcomes), loss=1e-5, weights=1e-5)


def test_a_finished_state_is_not_trained_again(of_two):
    first, second = of_two["found"]
    assert first["reported"] == second["reported"] == []
    assert state_of(of_two["found"]) == state_of(of_two["fp32"])


def test_all_ranks_stop_at_the_first_step_that_is_not_finite(of_two, base):
    first, second = of_two["wild"]
    assert first["error"] == second["error"]
    assert first["error"].startswith("DivergedError: step ")
    assert "is not finite; lower the learning rate" in first["error"]
    assert not (base / "wild/states").exists()
    # One of them wrote the record and the weights before the step.
    (path,) = (base / "wild").glob("progress/*/faults/*/fault.json")
    fault = json.loads(path.read_text())
    assert first["error"] == f"DivergedError: {fault['error']}"
    assert not fault["again"]["is_finite"]
    (checkpoint,) = (base / "wild").glob("progress/*/step-*")
    assert checkpoint.name == path.parent.name == f"step-{fault['step']:08d}"


def test_ranks_that_differ_do_not_begin(of_two, base):
    for outcome in of_two["other weights"]:
        assert outcome["error"].startswith("TrainingError: the weights after 0 steps differ ")
    assert not (base / "other/states").exists()


def test_three_ranks_share_four_rows(of_three, references):
    assert_close(references("fp32"), state_of(of_three["whole"]), loss=1e-5, weights=1e-5)


def inputs_of(recipe, data: TrainingData, ranks: ProcessGroup) -> StepInputs:
    compute = ComputeConfig(processes=ranks.dp_world_size)
    return StepInputs(recipe, data, first_model(recipe, data), compute=compute, ranks=ranks)


def rows_and_labels(given: StepInput) -> list[tuple[bool, tuple, tuple]]:
    """Return each row that some pass reads: its direction, tokens, and (place, label) pairs."""
    rows = []
    for each in given.passes:
        length = each.input_ids.shape[1]
        where = each.positions.numpy() // length
        for row, tokens in enumerate(each.input_ids.numpy()):
            inside = where == row
            places = each.positions.numpy()[inside] - row * length
            labels = zip(places.tolist(), each.labels.numpy()[inside].tolist(), strict=True)
            rows.append((each.causal, tuple(tokens.tolist()), tuple(labels)))
    return rows


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_shares_hold_the_rows_and_masks_of_the_whole_batch(make_recipe, training_data, name, size):
    phases, changes, _ = RUNS[name]
    recipe = make_recipe(*phases, **{**changes, **({"rows_per_step": 8} if size == 8 else {})})
    whole = inputs_of(recipe, training_data, ProcessGroup())
    groups = [ProcessGroup(rank, size) for rank in range(size)]
    ranks = [inputs_of(recipe, training_data, group) for group in groups]
    without = 0
    for step in range(recipe.total_steps):
        expected = whole.of(step)
        shares = [each.of(step) for each in ranks]
        for share in shares:
            assert share.sha256 == expected.sha256
            assert (share.num_supervised, share.flops) == (expected.num_supervised, expected.flops)
        found = [row for share in shares for row in rows_and_labels(share)]
        labelled = [row for row in rows_and_labels(expected) if row[2]]
        assert sorted(row for row in found if row[2]) == sorted(labelled)
        without += sum(not len(each.labels) for share in shares for each in share.passes)
        # All ranks gather the weights of a pass together.
        assert len({len(share.passes) for share in shares}) == 1
    assert (without > 0) == (name == "sparse" or (name == "mix" and size > 2))


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shares_of_rows_are_whole_and_even(size):
    for num_rows in range(20):
        for before in range(10):
            ends = [ProcessGroup(rank, size).share(num_rows, before=before) for rank in range(size)]
            assert [row for start, end in ends for row in range(start, end)] == [*range(num_rows)]
            sizes = [end - start for start, end in ends]
            assert max(sizes) - min(sizes) <= 1
    # Eight parts of one row each leave no rank without one.
    parts = [
        [ProcessGroup(rank, 4).share(1, before=part) for rank in range(4)] for part in range(8)
    ]
    per_rank = np.array([[end - start for start, end in part] for part in parts]).sum(0)
    assert per_rank.tolist() == [2, 2, 2, 2]


def test_more_processes_than_rows_are_refused_by_name(make_recipe, training_data, tmp_path):
    recipe = make_recipe(CLM, {**BERT, "rows_per_step": 2})
    message = r"phases\.1\.rows_per_step: 2 are fewer than the 3 processes .* to 2 or less"
    with pytest.raises(ConfigError, match=message):
        alone(recipe, training_data, tmp_path, compute={"processes": 3})
    assert not list(tmp_path.iterdir())


def test_a_process_that_is_alone_does_not_stand_for_several(make_recipe, training_data, tmp_path):
    with pytest.raises(ConfigError, match=r"compute\.processes is 2, .* one of 1"):
        alone(make_recipe(CLM), training_data, tmp_path, compute={"processes": 2})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", SHARDED)
def test_divided_weights_are_trained_as_whole_ones(of_two, references, name):
    whole = name.removeprefix("sharded ")
    loss, weights = 1e-5, ROUNDING.get(whole, 1e-5)
    if whole == "passes":
        loss, weights = 2e-3, 2e-2
    assert_close(references(whole), state_of(of_two[name]), loss=loss, weights=weights)


def test_a_stopped_run_with_divided_weights_resumes_as_if_it_had_not_stopped(of_two):
    assert_equal(state_of(of_two["sharded resumed"]), state_of(of_two["sharded fp32"]))


@pytest.mark.parametrize(("run", "name"), [("fp32", "grown"), ("muon", "muon grown")])
def test_four_ranks_divide_weights(of_four, references, run, name):
    found = state_of(of_four[name])
    assert_close(references(run), found, loss=1e-5, weights=ROUNDING.get(run, 1e-5))
    assert read_json(found / "state.json")["compute"]["shard"] == "hybrid"


@pytest.mark.parametrize(("run", "left"), [("fp32", "sharded left"), ("muon", "muon left")])
def test_one_process_resumes_where_divided_weights_stopped(
    of_two, base, references, make_recipe, training_data, tmp_path, run, left
):
    assert all("stopped after 2 steps" in each["error"] for each in of_two[left])
    shutil.copytree(base / left.replace(" ", "-") / "progress", tmp_path / "progress")
    (folder,) = tmp_path.glob("progress/*/step-00000002")
    assert len(list(folder.glob("shard-*.safetensors"))) == 2
    assert not list(folder.glob("*.metadata"))  # torch's own metadata would be a pickle
    steps: list[int] = []
    recipe = recipe_of(make_recipe, run)
    found = alone(recipe, training_data, tmp_path, report=lambda done: steps.append(done.step))
    assert steps == [3, 4, 5, 6]
    assert_close(references(run), found, loss=1e-5, weights=ROUNDING.get(run, 1e-5))
