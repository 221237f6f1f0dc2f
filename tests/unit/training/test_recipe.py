"""Identities: what determines a state, and nothing else."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biphasic.config import parse_config
from biphasic.errors import ConfigError
from biphasic.model.shape import PRESETS
from biphasic.training import lineage as module
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import DataFingerprint, Lineage
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.recipe import Recipe
from refusals import refusals, refused

GROUND = DataFingerprint(corpus_hash="c" * 64, tokenizer_sha256="t" * 64, vocab_size=320)


def clm(steps: int, **settings: object) -> dict:
    return {"objective": "clm", "steps": steps, **settings}


def mlm(steps: int, **settings: object) -> dict:
    return {"objective": "mlm", "steps": steps, **settings}


def lineage(*phases: dict, fingerprint: DataFingerprint = GROUND, **changes: object) -> Lineage:
    raw = {"model": "pico", "phases": phases, "learning_rate": {"peak": 1e-3}, **changes}
    return Lineage(parse_config(Recipe, raw, where="test"), fingerprint)


def identities(*phases: dict, **changes: object) -> list[str]:
    return lineage(*phases, **changes).identities


def shared(one: list[str], other: list[str]) -> int:
    """Return how many leading states two lineages share."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


PHASES = st.lists(
    st.one_of(
        st.builds(clm, st.integers(1, 4)),
        st.builds(
            mlm,
            st.integers(1, 4),
            mlm_probability=st.sampled_from([0.2, 0.4]),
            replacement=st.sampled_from(["mask", "bert"]),
        ),
    ),
    max_size=3,
)
RECIPES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["pico", "pico", "nano"]),
        "phases": PHASES,
        "learning_rate": st.fixed_dictionaries(
            {
                "peak": st.sampled_from([1e-3, 2e-3]),
                "warmup_steps": st.sampled_from([0, 1, 2]),
                "decay_steps": st.sampled_from([0, 1, 3]),
            }
        ),
        "max_seqlen": st.sampled_from([32, 32, 64]),
        "rows_per_step": st.sampled_from([4, 4, 8]),
        "precision": st.sampled_from(["bf16", "fp32"]),
        "optimizer": st.sampled_from([{}, {}, {"beta2": 0.95}, {"beta2": 0.99}]),
        "seeds": st.fixed_dictionaries(
            {"mask_seed": st.integers(0, 1), "data_seed": st.sampled_from([0, 0, 1])}
        ),
    }
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict, dict]:
    """Two recipes that differ in a few places, so that they often share a beginning."""
    first, other = draw(RECIPES), draw(RECIPES)
    taken = draw(st.sets(st.sampled_from(sorted(first)), max_size=2))
    second = {**first, **{name: other[name] for name in taken}}
    if "phases" in taken and draw(st.booleans()):
        kept = draw(st.integers(0, len(first["phases"])))
        second["phases"] = first["phases"][:kept] + other["phases"]
    return first, second


def admissible(raw: dict) -> bool:
    schedule, total = raw["learning_rate"], sum(phase["steps"] for phase in raw["phases"])
    return not total or schedule["warmup_steps"] + schedule["decay_steps"] <= total


def written_out(raw: dict) -> list[object]:
    """Expand a recipe by hand: what determines the initial state, then each update.

    Independent of the code under test, written from the definition of a state's identity.
    """
    schedule, phases = raw["learning_rate"], raw["phases"]
    total = sum(phase["steps"] for phase in phases)
    expansion: list[object] = [(raw["model"], raw["max_seqlen"])]
    step = 0
    for phase in phases:
        for _ in range(phase["steps"]):
            rate = schedule["peak"]
            if step < schedule["warmup_steps"]:
                rate = rate * (step + 1) / schedule["warmup_steps"]
            elif total - step <= schedule["decay_steps"]:
                rate = rate * (total - step) / (schedule["decay_steps"] + 1)
            objective = (phase["objective"],)
            if phase["objective"] == "mlm":
                objective = (
                    *objective,
                    phase["mlm_probability"],
                    phase["replacement"],
                    raw["seeds"]["mask_seed"],
                )
            data = (raw["rows_per_step"], raw["max_seqlen"], raw["seeds"]["data_seed"])
            beta2 = raw["optimizer"].get("beta2", 0.95)
            expansion.append((objective, rate, data, raw["precision"], beta2))
            step += 1
    return expansion


@settings(max_examples=120)
@given(pairs().filter(lambda pair: all(map(admissible, pair))))
def test_identities_agree_if_and_only_if_expansions_do(pair):
    chains = [Lineage(parse_config(Recipe, raw, where="x"), GROUND).identities for raw in pair]
    expansions = [written_out(raw) for raw in pair]
    for step in range(max(map(len, expansions))):
        for other in range(max(map(len, expansions))):
            if step >= len(expansions[0]) or other >= len(expansions[1]):
                continue
            agree = expansions[0][: step + 1] == expansions[1][: other + 1]
            assert (chains[0][step] == chains[1][other]) == agree


def test_preset_equals_its_dimensions_written_out():
    dimensions = PRESETS["pico"].model_dump()
    assert identities(clm(2)) == identities(clm(2), model=dimensions)
    deeper = {**dimensions, "num_layers": 3}
    assert shared(identities(clm(2)), identities(clm(2), model=deeper)) == 0


@pytest.mark.parametrize(
    ("changes", "first_difference"),
    [
        ({"seeds": {"init_seed": 1}}, 0),
        ({"seeds": {"data_seed": 1}}, 1),
        ({"max_seqlen": 128}, 0),  # it bounds the positions of the model too
        ({"rows_per_step": 4}, 1),
        ({"rows": "random_length"}, 1),
        ({"rows": "documents"}, 3),  # as before the setting existed
        ({"precision": "fp32"}, 1),
        ({"optimizer": {"max_gradient_norm": 2.0}}, 1),
        ({"optimizer": {"name": "muon"}}, 1),
        ({"optimizer": {"weight_decay": 0.0}}, 1),
        ({"optimizer": {"beta1": 0.8}}, 1),
        ({"optimizer": {"epsilon": 1e-8}}, 1),
        ({"learning_rate": {"peak": 2e-3}}, 1),
        ({"fingerprint": dataclasses.replace(GROUND, corpus_hash="d" * 64)}, 1),
        ({"fingerprint": dataclasses.replace(GROUND, tokenizer_sha256="u" * 64)}, 0),
        ({"fingerprint": dataclasses.replace(GROUND, vocab_size=321)}, 0),
    ],
)
def test_each_determinant_matters_from_where_it_acts(changes, first_difference):
    assert shared(identities(clm(2)), identities(clm(2), **changes)) == first_difference


@pytest.mark.parametrize(
    ("name", "first_difference"),
    [("NUMERICS_VERSION", 0), ("ROW_PLAN_VERSION", 1), ("WINDOW_DOCUMENTS", 1)],
)
def test_versions_by_hand_change_identities(monkeypatch, name, first_difference):
    before = identities(clm(2))
    monkeypatch.setattr(module, name, getattr(module, name) + 1)
    assert shared(before, identities(clm(2))) == first_difference


def test_golden_identities():
    # A change here orphans every state on people's disks: bump a version on purpose instead.
    found = identities(
        clm(2),
        mlm(2, mlm_probability=0.4),
        learning_rate={"peak": 2e-3, "warmup_steps": 1, "decay_steps": 1},
        max_seqlen=32,
        rows_per_step=4,
    )
    assert found == [
        "997f74c8d87cd26d7b9d9ef239545e9e7d363d96f15001b728dd5de06e6ea7aa",
        "173333b351ad44bcc23b0209d09b3937a7a6b81df01aac56166f5efe5ef7a6f3",
        "2b5178a03cdb922723f2c85a6a375c5b4c7b5430e405fe71895fe1f6c4c2903c",
        "01a906c75686dfab0a3a1a2e830c0bf36ec30fd1651577999739fbd3fdd3ec9b",
        "a4c826ac879e1e47eb75e5129362eddeb7d3e2b1d00a740f4adcbb306fbb375d",
    ]


def test_every_setting_of_muon_is_in_an_identity():
    last = {
        identities(clm(2), optimizer={"name": "muon", **changes})[-1]
        for changes in ({}, {"momentum": 0.9}, {"beta2": 0.9}, {"weight_decay": 0.2})
    }
    assert len(last) == 4


def test_settings_without_a_name_are_adamws():
    recipe = lineage(clm(2), optimizer={"beta2": 0.98}).recipe
    assert recipe.optimizer == AdamW(beta2=0.98)
    assert recipe == lineage(clm(2), optimizer={"name": "adamw", "beta2": 0.98}).recipe


def test_a_new_setting_of_the_optimizer_keeps_old_identities(monkeypatch):
    class LaterOptimizer(AdamW):
        nesterov: bool = False

    before = lineage(clm(2))
    recipe = before.recipe.model_copy(update={"optimizer": LaterOptimizer()})
    assert Lineage(recipe, GROUND).identities == before.identities


def test_a_step_of_absurd_size_is_refused():
    with pytest.raises(ConfigError, match=r"^rows_per_step: 1,000,000,000,000 .* 268,435,456"):
        lineage(clm(4), rows_per_step=10**12)
    with pytest.raises(ConfigError, match=r"^phases\.1\.rows_per_step: 524,288 .* 1,024 tokens"):
        lineage(clm(4), clm(4, rows_per_step=1 << 19, max_seqlen=1024))
    lineage(clm(4, rows_per_step=1 << 18, max_seqlen=1024))


SCHEDULE = {"peak": 1e-3, "warmup_steps": 2, "decay_steps": 2}


def test_continued_runs_of_three_lengths_share_their_constant_segment():
    runs = [
        identities(
            clm(6),
            mlm(steps, learning_rate={"peak": 5e-4, "decay_steps": 2}),
            learning_rate=SCHEDULE,
        )
        for steps in (3, 8, 12)
    ]
    # After 6 decayed steps: 1 constant one before the short run decays, 6 before the middle one.
    assert shared(runs[0], runs[1]) == shared(runs[0], runs[2]) == 6 + 1 + 1
    assert shared(runs[1], runs[2]) == 6 + 6 + 1


@pytest.mark.parametrize(
    ("settings", "first_difference"),
    [
        ({"learning_rate_scale": 0.5}, 4),
        ({"optimizer_state": "reset"}, 4),
        ({"freeze": ["lm_head.*"]}, 4),
        ({"lora": {"rank": 4}}, 4),
        ({"max_seqlen": 128}, 4),
        ({"rows_per_step": 2}, 4),
        ({"rope_theta": 160_000.0}, 4),
        ({"learning_rate_scale": 1.0, "max_seqlen": 256, "rows_per_step": 8}, 8),  # as it was
    ],
)
def test_settings_of_a_phase_change_identities_from_its_first_step(settings, first_difference):
    plain = identities(clm(3), mlm(4))
    changed = identities(clm(3), {**mlm(4), **settings})
    assert shared(plain, changed) == first_difference


def test_an_optimizer_is_reset_once():
    specs = list(lineage(clm(2), mlm(3, optimizer_state="reset")).updates())
    assert ["resets_optimizer" in spec for spec in specs] == [False, False, True, False, False]


def test_patterns_of_frozen_parameters_are_a_set():
    one = identities(mlm(2, freeze=["a", "b"]))
    assert one == identities(mlm(2, freeze=["b", "a", "b"]))


def test_an_optimizer_is_reset_where_lora_begins_or_ends():
    lora = {"rank": 4}
    phases = clm(1), mlm(2, lora=lora), mlm(2, lora=lora), mlm(2), mlm(1)
    specs = list(lineage(*phases).updates())
    assert ["lora" in spec for spec in specs] == [False, *[True] * 4, *[False] * 3]
    resets = [step for step, spec in enumerate(specs) if "resets_optimizer" in spec]
    assert resets == [1, 3, 5]
    # To ask for it there changes nothing, so it is the same training.
    asked = [{**phase, "optimizer_state": "reset"} for phase in phases[1:4]]
    assert identities(phases[0], *asked, phases[4]) == identities(*phases)


def test_settings_of_lora_are_hashed_as_resolved():
    named = ({"rank": 4}, {"rank": 4, "alpha": 8, "targets": []})
    assert len({identities(clm(1), mlm(1, lora=lora))[-1] for lora in named}) == 1
    named = ({"targets": ["a", "b"]}, {"targets": ["b", "a", "b"]}, {}, {"alpha": 3})
    runs = {identities(clm(1), mlm(1, lora={"rank": 4, **lora}))[-1] for lora in named}
    assert len(runs) == 3


def test_records_of_recipes_without_lora_are_as_before_there_was_any():
    (phase,) = lineage(mlm(1)).recipe.model_dump(mode="json")["phases"]
    assert "lora" not in phase


@refusals(
    {
        "random weights": (
            [{"lora": {"rank": 2}}], ConfigError, "phases.0.lora", "random", "in a phase before",
        ),
        "frozen as well": (
            [{}, {"lora": {"rank": 2}, "freeze": ["a"]}], ConfigError, "phases.1.freeze", "remove",
        ),
        "no rank": ([{}, {"lora": {}}], ConfigError, "phases.1.lora.rank"),
        "rank 0": ([{}, {"lora": {"rank": 0}}], ConfigError, "phases.1.lora.rank"),
        "alpha 0": ([{}, {"lora": {"rank": 1, "alpha": 0}}], ConfigError, "lora.alpha"),
        "an unknown key": ([{}, {"lora": {"rank": 1, "dropout": 0.1}}], ConfigError, "dropout"),
    }
)  # fmt: skip
def test_lora_that_cannot_train_is_refused(given, error, parts):
    refused(error, parts, lambda: identities(*(mlm(2, **phase) for phase in given)))


def test_one_process_trains_lora():
    recipe = lineage(clm(1), mlm(1, lora={"rank": 2})).recipe
    parts = ["phases.1.lora", "one process", "omit compute.processes"]
    refused(ConfigError, parts, ComputeConfig(processes=2).check_rows, recipe.placed_phases)


def test_a_phase_may_read_another_corpus():
    fingerprint = dataclasses.replace(GROUND, corpora={"/other": "d" * 64})
    other = lineage(clm(1), mlm(2, corpus="/other"), clm(1), fingerprint=fingerprint)
    assert [spec["corpus_hash"][0] for spec in other.updates()] == ["c", "d", "d", "c"]


def test_a_finished_model_is_the_root():
    model = {"pretrained": "some/decoder"}
    grounds = [dataclasses.replace(GROUND, pretrained=name * 64) for name in "ab"]
    one, other = (
        lineage(mlm(2), fingerprint=fingerprint, model=model).identities for fingerprint in grounds
    )
    assert shared(one, other) == 0
    # What it is called does not matter, its content does.
    moved = lineage(mlm(2), fingerprint=grounds[0], model={"pretrained": "/elsewhere"})
    assert moved.identities == one
