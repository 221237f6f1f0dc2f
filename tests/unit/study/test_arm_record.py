"""What `study.json` says of the factors of each arm."""

from pathlib import Path

import pytest

from biphasic.analysis.scores.source import replicate_of
from biphasic.model.loading.hub import LocalModel
from biphasic.study.run.record import arm_record
from plugin_files import write_stride
from tiny_study import clm, mlm, plan_of, tiny_study

PEAK = {"peak": 1e-3, "decay_steps": 2}


def records(*arms, schedule=PEAK, **changes):
    config = tiny_study(*arms, recipe={"learning_rate": schedule}, **changes)
    return {point.name: arm_record(point) for point in plan_of(config).points}


def test_a_mix_has_its_phases_and_a_point_on_its_way_those_that_have_begun():
    phases = [clm(4), mlm(6, mlm_probability=0.3)]
    found = records(
        {"name": "both", "group": "pfs", "phases": phases},
        evaluation_points=[{"arms": ["both"], "steps": [3, 7]}],
    )
    assert [(p.objective, p.steps, p.mask_rate) for p in found["both"].phases] == [
        ("clm", 4, None), ("mlm", 6, 0.3),
    ]  # fmt: skip
    assert found["both"].is_final
    assert found["both"].group == "pfs"
    assert (found["both"].arm, found["both-7"].arm) == ("both", "both")
    assert [(p.objective, p.steps) for p in found["both-7"].phases] == [("clm", 4), ("mlm", 3)]
    assert [(p.objective, p.steps) for p in found["both-3"].phases] == [("clm", 3)]
    assert not found["both-3"].is_final


def test_arms_that_differ_in_a_setting_of_a_phase_are_no_replicates():
    arms = {
        "plain": [clm(4), mlm(6)],
        "bert": [clm(4), mlm(6, replacement="bert")],
        "frozen": [clm(4), mlm(6, freeze=["model.embed*"])],
    }
    found = records(*({"name": name, "phases": phases} for name, phases in arms.items()))
    assert "settings" not in found["plain"].phases[1].model_dump()
    assert len({replicate_of(record) for record in found.values()}) == len(arms)


def test_plugins_of_one_name_are_no_replicates(tmp_path):
    arms = []
    for file in ("one", "other"):
        (tmp_path / file).mkdir()
        path = write_stride(tmp_path / file, ("= 4\n", f"= 4\n    {file}: int = 1\n"))
        phases = [{"objective": f"{path}:Stride", "steps": 4}]
        arms += [{"name": f"{file}-{n}", "recipe": {"seed": n}, "phases": phases} for n in (0, 1)]
    recipes = {name: replicate_of(record) for name, record in records(*arms).items()}
    assert recipes["one-0"] == recipes["one-1"] != recipes["other-0"] == recipes["other-1"]


def test_arms_of_other_dimensions_or_tuned_rates_are_no_replicates():
    wide = {
        "num_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "num_key_value_heads": 2,
    }
    arms = {
        "wide": {"model": wide},
        "narrow": {"model": {**wide, "intermediate_size": 48}, "seed": 1},
        "one-head": {"model": {**wide, "num_heads": 1, "num_key_value_heads": 1}, "seed": 1},
        "few-keys": {"model": {**wide, "num_heads": 4, "num_key_value_heads": 4}, "seed": 2},
        "plain": {},
        "run": {"seed": 1},
        "tuned": {"seed": 2},
    }
    found = records(
        *({"name": name, "recipe": recipe, "phases": [clm(4)]} for name, recipe in arms.items()),
        tuned_rates=[{"arms": ["tuned"], "peak": 4e-3}],
    )
    recipes = {name: replicate_of(record) for name, record in found.items()}
    assert recipes["plain"] == recipes["run"]
    assert len({*recipes.values()}) == 6


def test_the_peak_of_an_arm_is_recorded_and_that_it_was_tuned():
    last = {"arms": ["mlm"], "schedule": "last", "peak": 7e-4, "trials": 3}
    tuned = [{"arms": ["mlm"], "peak": 4e-3, "trials": 5}, last]
    found = records(
        {"name": "untrained"},
        {"name": "mlm", "phases": [mlm(8), mlm(8, learning_rate={"peak": 1e-4})]},
        {"name": "clm", "phases": [clm(8)]},
        tuned_rates=tuned,
    )
    rates = {name: (record.peak, record.is_tuned) for name, record in found.items()}
    assert (found["mlm"].num_trials, found["clm"].num_trials) == (5, None)
    assert (found["mlm"].last_peak, found["mlm"].last_trials) == (7e-4, 3)
    assert found["clm"].model_dump().keys().isdisjoint({"num_trials", "last_peak", "last_trials"})
    assert rates == {"untrained": (None, False), "mlm": (4e-3, True), "clm": (1e-3, False)}


def test_parameters_are_those_of_the_body():
    found = records({"name": "untrained"}, {"name": "wide", "recipe": {"model": "nano"}})
    # Pico by hand: embeddings 320 * 64; a layer has queries and output 64 * 64 each, keys and
    # values 64 * 32 each, three matrices 64 * 160, two norms of 64; one norm of 64 at the end.
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64
    assert found["untrained"].parameters == 320 * 64 + 2 * layer + 64
    assert found["untrained"].model == "pico"
    assert found["untrained"].phases == ()
    assert found["wide"].model == "nano"
    assert found["wide"].parameters > found["untrained"].parameters


@pytest.mark.parametrize("decay", [2, 0])
def test_training_after_a_decay_continues_a_finished_model(decay):
    schedule = {"peak": 1e-3, "decay_steps": decay}
    phases = [clm(8), mlm(5, learning_rate=PEAK)]
    found = records(
        {"name": "on", "phases": phases},
        schedule=schedule,
        evaluation_points=[{"arms": ["on"], "steps": [8, 10]}],
    )
    expected = ("CLM", 5) if decay else (None, 0)
    assert (found["on"].continues, found["on"].continued_steps) == expected
    assert found["on-10"].continued_steps == (2 if decay else 0)
    assert (found["on-8"].continues, found["on-8"].continued_steps) == (None, 0)


def test_turns_are_counted_by_objective_and_a_changing_rate_has_two_ends():
    turns = {"objective": "alternate", "every": 2, "steps": 7,
             "objectives": [{"objective": "clm"}, {"objective": "mlm"}]}  # fmt: skip
    falling = mlm(5, mlm_probability=0.4, final_mlm_probability=0.2)
    found = records({"name": "turns", "phases": [turns]}, {"name": "falling", "phases": [falling]})
    # Turns of two: clm, clm, mlm, mlm, clm, clm, mlm.
    assert found["turns"].phases[0].steps_by_objective == {"clm": 4, "mlm": 3}
    phase = found["falling"].phases[0]
    assert phase.mask_rate == pytest.approx(0.4)
    assert phase.final_mask_rate == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("usual", "expected"),
    [
        ({"bidirectional"}, (None, "causal")),
        ({"bidirectional", "causal"}, ("bidirectional", "causal")),
    ],
)
def test_an_arm_that_attends_as_the_tasks_say_is_like_one_that_leaves_it_to_them(usual, expected):
    config = tiny_study({"phases": [clm(8)], "axes": {"attention": ["bidirectional", "causal"]}})
    found = [arm_record(point, usual=usual).attention for point in plan_of(config).points]
    assert tuple(found) == expected


def test_changes_to_the_shared_recipe_and_seeds_are_recorded():
    changes = {"seeds": {"init_seed": 7}, "model": "nano"}
    found = records({"name": "a", "recipe": changes, "phases": [clm(4)]})
    assert found["a"].recipe == {"seeds": {"init_seed": 7}}
    assert found["a"].seeds == {"init_seed": 7, "data_seed": 0, "mask_seed": 0}


def test_finished_encoders_of_one_name_are_no_replicates():
    folders = {name: f"{name}/base" for name in ("ours", "theirs")}
    config = tiny_study(
        *({"name": name, "encoder": {"pretrained": folder}} for name, folder in folders.items()),
        {"name": "untrained"},
    )
    models = {name: LocalModel(Path(folder), name, None) for name, folder in folders.items()}
    plan = plan_of(config, encoders=models)
    assert [segment.arm.name for segment in plan.segments] == ["untrained"]
    found = {point.name: arm_record(point) for point in plan.points}
    assert (found["ours"].state, found["ours"].model) == ("ours", "base")
    assert found["ours"].is_finished_encoder
    assert len({replicate_of(record) for record in found.values()}) == 3
    assert len({*config.recipes_by_state().values()}) == 3
