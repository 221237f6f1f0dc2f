"""Expansions by stretches and the tree of states, against every update written out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tiny_study
from biphasic.config import parse_config
from biphasic.errors import ConfigError
from biphasic.study.plan.tree import StateTree, expand
from biphasic.study.settings.study import StudyConfig
from biphasic.training.lineage import Lineage
from biphasic.training.recipe import Recipe
from tiny_study import clm, mlm

GROUND = replace(tiny_study.GROUND, corpora={"other": "d" * 64})


def objectives() -> st.SearchStrategy[dict]:
    clm = st.just({"objective": "clm"})
    mlm = st.fixed_dictionaries(
        {"objective": st.just("mlm")},
        optional={
            "mlm_probability": st.sampled_from([0.2, 0.4]),
            "final_mlm_probability": st.sampled_from([0.1, 0.4]),
            "replacement": st.just("bert"),
        },
    )
    alternate = st.fixed_dictionaries(
        {
            "objective": st.just("alternate"),
            "every": st.integers(1, 2),
            "objectives": st.just([{"objective": "clm"}, {"objective": "mlm"}]),
        }
    )
    mix = st.just(
        {
            "objective": "mix",
            "objectives": [{"objective": "clm"}, {"objective": "mlm"}],
            "shares": [0.5, 0.5],
        }
    )
    return st.one_of(clm, clm, mlm, mlm, alternate, mix)


SETTINGS = st.fixed_dictionaries(
    {"steps": st.integers(3, 6)},
    optional={
        "learning_rate": st.fixed_dictionaries(
            {"peak": st.sampled_from([1e-3, 2e-3])},
            optional={"warmup_steps": st.integers(0, 1), "decay_steps": st.integers(0, 2)},
        ),
        "learning_rate_scale": st.sampled_from([0.5, 1.0]),
        "optimizer_state": st.sampled_from(["keep", "reset"]),
        "freeze": st.just(["model.embed*"]),
        "lora": st.just({"rank": 2}),
        "corpus": st.just("other"),
        "max_seqlen": st.sampled_from([32, 64]),
        "rope_theta": st.just(20000.0),
    },
)
TRAINED = st.builds(lambda a, b: {**a, **b}, objectives(), SETTINGS)


def possible(phases: list[dict]) -> list[dict]:
    """Leave out LoRA of random weights, and patterns beside it."""
    first = [{key: value for key, value in phase.items() if key != "lora"} for phase in phases[:1]]
    rest = ({k: v for k, v in p.items() if k != "freeze" or "lora" not in p} for p in phases[1:])
    return [*first, *rest]


PHASES = st.lists(TRAINED, max_size=3).map(possible)
RECIPES = st.fixed_dictionaries(
    {
        "phases": PHASES,
        "learning_rate": st.fixed_dictionaries(
            {
                "peak": st.just(1e-3),
                "warmup_steps": st.integers(0, 2),
                "decay_steps": st.integers(0, 2),
            }
        ),
        "seeds": st.fixed_dictionaries({"mask_seed": st.integers(0, 1)}),
    },
    optional={"skip_steps": st.lists(st.integers(0, 7), max_size=3)},
)


def recipe_of(raw: dict) -> Recipe | None:
    whole = {"model": "pico", "max_seqlen": 32, "rows_per_step": 4, **raw}
    recipe = parse_config(Recipe, whole, where="x")
    try:
        Lineage(recipe, GROUND)
    except ConfigError:
        return None
    return recipe


@settings(max_examples=80)
@given(st.lists(RECIPES, min_size=1, max_size=4), st.data())
def test_a_tree_of_states_is_every_update_written_out_once(raws, data):
    recipes = [recipe for recipe in map(recipe_of, raws) if recipe is not None]
    tree, wanted = StateTree(), []
    for recipe in recipes:
        stops = data.draw(st.lists(st.integers(1, 20), max_size=3))
        lineage = Lineage(recipe, GROUND)
        wanted.append((lineage.identities, tree.add(lineage, stops)))
    tree.name_states()
    nodes = {id(node): node for _, own in wanted for node in own.values()}
    for identities, own in wanted:
        for step, node in own.items():
            assert node.step == step
            assert node.identity == identities[step]
            # Each node on the way is a state of this run, in ascending order.
            path = node.path()
            assert [each.identity for each in path] == [identities[each.step] for each in path]
            assert [each.step for each in path] == sorted({each.step for each in path})
    # Equal states are one node, and each update between nodes lies on one edge alone.
    names = [node.identity for node in nodes.values()]
    assert len(names) == len(set(names))
    edges = {id(node): node for own in nodes.values() for node in own.path() if node.parent}
    trained = [(n.identity, n.step - n.parent.step) for n in edges.values() if n.parent]
    assert len({name for name, _ in trained}) == len(trained)
    every = {name for identities, _ in wanted for name in identities[1:]}
    assert sum(steps for _, steps in trained) == len(every)


def test_stretches_are_as_few_as_can_be():
    recipe = recipe_of(
        {
            "learning_rate": {"peak": 1e-3, "warmup_steps": 2, "decay_steps": 1},
            "phases": [clm(50), clm(50), mlm(10)],
        }
    )
    assert recipe is not None
    # The last step of the warm-up is at the peak, as all after it.
    assert [count for _, count in expand(Lineage(recipe, GROUND)).stretches] == [1, 99, 9, 1]


def study(arms: list, points: list, *, decay: int = 2) -> StudyConfig:
    schedule = {"peak": 1e-3, "decay_steps": decay}
    return tiny_study.tiny_study(
        *arms, recipe={"learning_rate": schedule}, evaluation_points=points
    )


PHASE = st.builds(lambda of, steps: of(steps), st.sampled_from([clm, mlm]), st.integers(1, 6))
ARMS = st.lists(st.lists(PHASE, max_size=3), min_size=1, max_size=5)


@given(ARMS, st.sets(st.integers(1, 6), max_size=3), st.integers(0, 2))
def test_a_plan_reaches_each_needed_state_once(phases, steps, decay):
    arms = [{"name": f"a{index}", "phases": own} for index, own in enumerate(phases)]
    totals = {arm["name"]: sum(phase["steps"] for phase in arm["phases"]) for arm in arms}
    assume(all(total == 0 or total >= decay for total in totals.values()))
    points = [
        {"arms": [name], "steps": sorted(s for s in steps if s <= total)}
        for name, total in totals.items()
        if any(s <= total for s in steps)
    ]
    config = study(arms, points, decay=decay)
    plan = tiny_study.plan_of(config, GROUND)

    chains = {arm.name: Lineage(config.recipe_of(arm), GROUND).identities for arm in config.arms}
    needed = {chain[-1] for chain in chains.values()}
    needed |= {chains[p["arms"][0]][step] for p in points for step in p["steps"]}
    assert {point.state for point in plan.points} == needed
    done, trained = set(), []
    for segment in plan.segments:
        assert segment.id not in done
        assert (segment.parent is None) == (segment.start == 0)
        assert segment.parent is None or segment.parent in done
        chain = Lineage(segment.arm.recipe, GROUND).identities
        assert chain[segment.end] == segment.id
        assert not segment.start or chain[segment.start] == segment.parent
        trained += chain[segment.start + 1 : segment.end + 1]
        done.add(segment.id)
    assert needed <= done
    assert len(trained) == len(set(trained))
    assert set(trained) == {name for chain in chains.values() for name in chain[1:]}


def test_intermediate_points_have_names_and_families():
    two = {"name": "two", "phases": [clm(4), mlm(6)]}
    plan = tiny_study.plan_of(study([two], [{"arms": ["t*"], "steps": [4, 5, 10]}]), GROUND)
    found = [(p.name, p.family, p.step, p.is_final) for p in plan.points]
    assert found == [
        ("two", "CLM+MLM", 10, True),
        ("two-4", "CLM", 4, False),
        ("two-5", "CLM+MLM", 5, False),
    ]


def test_the_end_of_an_arm_has_its_name():
    arms = [{"name": name, "phases": [clm(6)]} for name in ("a", "a-4", "a-6")]
    plan = tiny_study.plan_of(study(arms, [{"arms": ["a"], "steps": [6]}]), GROUND)
    assert [point.name for point in plan.points] == ["a", "a-4", "a-6"]
