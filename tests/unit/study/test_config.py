"""Study files: what is refused, with which hint, and what arms and tasks become."""

from pathlib import Path

import pytest

from biphasic.errors import ConfigError
from biphasic.study.settings.arms import family_of
from biphasic.study.settings.study import TaskConfig, anchor_source, deciding_metric
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import TaskInfo
from tiny_study import clm, mlm, tiny_study


def study(**changes):
    arms = [{"name": "mlm", "phases": [mlm(10)]}]
    return tiny_study(**{"arms": arms, "recipe": recipe(), **changes})


def recipe(**changes):
    return {"max_seqlen": 128, **changes}


def test_the_longest_schedule_that_fits_is_accepted():
    schedule = {"peak": 1, "warmup_steps": 5, "decay_steps": 5}
    assert study(recipe=recipe(learning_rate=schedule)).arms[0].phases[0].steps == 10


def test_arms_skip_steps_and_one_without_phases_has_none():
    arms = [
        {"name": "untrained"},
        {"name": "mlm", "phases": [mlm(10)]},
        {"name": "clm", "phases": [clm(20)], "recipe": {"skip_steps": [12, 7]}},
    ]
    config = study(recipe=recipe(skip_steps=[3]), arms=arms)
    assert [config.recipe_of(arm).skip_steps for arm in config.arms] == [(3,), (3,), (7, 12)]
    assert config.model_dump(mode="json")["recipe"]["skip_steps"] == [3]
    assert "skip_steps" not in study().model_dump(mode="json")["recipe"]
    with pytest.raises(ConfigError, match=r"'mlm': skip_steps: .* 12; .* 0 to 9"):
        study(recipe=recipe(skip_steps=[12]), arms=arms)


def test_an_arm_without_phases_has_no_schedule_to_fit():
    schedule = {"peak": 1, "warmup_steps": 5, "decay_steps": 5}
    config = study(recipe=recipe(learning_rate=schedule), arms=[{"name": "untrained"}])
    assert config.recipe_of(config.arms[0]).total_steps == 0


def test_a_task_overrides_only_what_it_names():
    config = study(
        finetuning={"protocol": {"max_seqlen": 64, "batch_size": 16}},
        tasks=[{"name": "pydocs-sc"}, {"name": "pydocs-ir", "protocol": {"batch_size": 4}}],
    )
    shared, special = map(config.protocol_of, config.tasks)
    assert shared == FinetuneProtocol(max_seqlen=64, batch_size=16)
    assert special == FinetuneProtocol(max_seqlen=64, batch_size=4)


@pytest.mark.parametrize(
    ("trained", "protocol", "expected"),
    [([], {}, 512), ([], {"max_seqlen": 2048}, 2048), ([{"name": "untrained"}], {}, 128)],
)
def test_inputs_are_limited_by_the_recipes_of_trained_arms_alone(trained, protocol, expected):
    arms = [{"name": "theirs", "encoder": {"pretrained": "owner/name"}}, *trained]
    config = study(arms=arms, tasks=[{"name": "pydocs-sc"}], finetuning={"protocol": protocol})
    assert config.protocol_of(config.tasks[0]).max_seqlen == expected


def test_inputs_may_be_as_long_as_the_rows_of_the_phases():
    def longest(*arms, **changes):
        tasks = [{"name": "pydocs-sc", "protocol": {"max_seqlen": 512}}]
        config = study(arms=[*arms], tasks=tasks, **changes)
        return config.protocol_of(config.tasks[0]).max_seqlen

    extended = {"name": "a", "phases": [mlm(10), mlm(10, max_seqlen=512)]}
    assert longest(extended) == 512
    with pytest.raises(ConfigError, match=r"512 exceeds the model's 128 .*arm 'b'"):
        longest(extended, {"name": "b", "phases": [mlm(10)]})
    with pytest.raises(ConfigError, match="512 exceeds the model's 128"):
        longest(extended, evaluation_points=[{"arms": ["a"], "steps": [10]}])


def test_a_task_overrides_one_setting_of_the_optimizer():
    config = study(
        finetuning={"protocol": {"max_seqlen": 64, "optimizer": {"weight_decay": 0.2}}},
        tasks=[{"name": "pydocs-ir", "protocol": {"optimizer": {"beta2": 0.9}}}],
    )
    optimizer = config.protocol_of(config.tasks[0], {"optimizer": {"beta1": 0.8}}).optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == (0.8, 0.9, 0.2)


@pytest.mark.parametrize(
    ("phases", "family"),
    [
        ([], "none"),
        ([clm(1)], "CLM"),
        ([mlm(1)], "MLM"),
        ([clm(1), mlm(1)], "CLM+MLM"),
        ([mlm(1), mlm(1, mlm_probability=0.2)], "MLM"),
        ([mlm(1), clm(1), mlm(1)], "MLM+CLM+MLM"),
    ],
)
def test_families_are_objectives_in_order(phases, family):
    config = study(arms=[{"name": "a", "phases": phases}])
    assert family_of(config.arms[0].phases) == family


def test_every_setting_of_a_recipe_is_one_of_the_study_or_the_arm():
    from biphasic.study.settings.study import RecipeConfig
    from biphasic.training.recipe import Recipe

    assert set(Recipe.model_fields) == {*RecipeConfig.model_fields, "phases"}
    assert set(RecipeConfig.__annotations__) == {"model"}, "declared in RecipeSettings"
    config = study(recipe=recipe(rows_per_step=3, precision="fp32", seeds={"data_seed": 7}))
    made = config.recipe_of(config.arms[0])
    assert (made.rows_per_step, made.precision, made.seeds.data_seed) == (3, "fp32", 7)


@pytest.mark.parametrize(
    ("source", "anchored"),
    [
        ("", ""),
        ("sc:reviews", "sc:/study/reviews"),
        ("sc:sst2", "sc:/study/sst2"),
        ("sc:/data/sst2", "sc:/data/sst2"),
        ("reviews.yaml", "/study/reviews.yaml"),
        ("folder", "/study/folder"),
        ("squad", "squad"),
        ("zs:nq", "zs:nq"),
        ("zs:beir/nq", "zs:/study/beir/nq"),
        ("pydocs-sc", "pydocs-sc"),
    ],
)
def test_paths_begin_at_the_study_file(source, anchored):
    assert anchor_source(source, Path("/study")) == anchored


def test_paths_of_a_study_are_relative_to_its_file():
    tasks = [{"name": "own", "source": "sc:own", "copies": "hub"}]
    found = study(tasks=tasks, corpus={"sources": ["text"]}).anchored(Path("/study"))
    assert found.tasks[0].source == "sc:/study/own"
    assert found.tasks[0].copies == Path("/study/hub")
    assert found.corpus.sources[0].source == "/study/text"


def test_the_paper_s_protocol_by_name():
    config = study(finetuning={"protocol": "paper"}, tasks=[{"name": "pydocs-sc"}])
    protocol = config.protocol_of(config.tasks[0])
    assert config.finetuning.is_paper
    assert (protocol.precision, protocol.max_seqlen) == ("paper", round(0.99 * 128))
    assert protocol.retrieval_corpus == "judged"
    limited = study(
        finetuning={"protocol": "paper"},
        tasks=[{"name": "pydocs-sc", "protocol": {"max_seqlen": 64}}],
    )
    assert limited.protocol_of(limited.tasks[0]).max_seqlen == 64


def test_a_task_description_overrides_shared_settings_but_not_the_task_s():
    config = study(
        finetuning={"protocol": {"batch_size": 8, "max_steps": 9}},
        tasks=[{"name": "pydocs-ir", "protocol": {"max_steps": 2}}],
    )
    found = config.protocol_of(config.tasks[0], {"batch_size": 4, "max_steps": 3})
    assert (found.batch_size, found.max_steps) == (4, 2)


def test_the_paper_protocol_scores_token_classification_by_tokens_by_default():
    info = TaskInfo("t", "tc", "T", "entity_f1", "0" * 64)
    published, own = TaskConfig(name="uner_en"), TaskConfig(name="t", source="tc:t")
    task = TaskConfig(name="uner_en", metric="entity_f1")
    assert deciding_metric(published, info, is_paper=True) == "sentence_token_f1"
    assert deciding_metric(published, info, is_paper=False) == "entity_f1"
    assert deciding_metric(own, info, is_paper=True) == "entity_f1"
    assert deciding_metric(task, info, is_paper=True) == "entity_f1"
