"""From arms to segments: each step of each lineage once, and nothing that is finished."""

import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biphasic.errors import CheckpointError, ConfigError
from biphasic.store import complete_folder
from biphasic.study.plan.finetuning import check_lengths
from biphasic.study.plan.finished import Finished, plan_notes
from biphasic.study.resolve import check_inputs
from biphasic.training.lineage import DataFingerprint
from tiny_study import GROUND, clm, mlm, plan_of, tiny_study


def configure(arms, **changes):
    finetuning = {"seeds": [0, 1], "learning_rates": [1e-4]}
    named = [
        {"name": name, **(arm if isinstance(arm, dict) else {"phases": arm})}
        for name, arm in arms.items()
    ]
    return tiny_study(*named, **{"finetuning": finetuning, **changes})


@pytest.fixture
def plan(locate, tmp_path):
    def make(arms, *folder, fingerprint=GROUND, **changes):
        config = configure(arms, **changes)
        return plan_of(config, fingerprint, locate(config, *folder), root=tmp_path)

    return make


def test_a_note_names_tasks_that_read_vectors_otherwise_than_arms_train_them(
    plan, make_retrieval, tmp_path
):
    lookup = make_retrieval(tmp_path / "lookup", kind="zs")
    tasks = [{"name": "lookup", "source": f"zs:{lookup}"}, {"name": "pydocs-sc"}]
    pairs = {"objective": "contrastive", "pairs": "p", "steps": 2}
    made = plan(
        {
            "mean": [clm(2), pairs],
            "last": [clm(2), {**pairs, "pooling": "last", "attention": "causal"}],
            "causal": {"phases": [{**pairs, "attention": "causal"}], "attention": "causal"},
            "clm": [clm(2)],
        },
        tasks=tasks,
        fingerprint=replace(GROUND, corpora={"p": "p" * 64}),
    )
    [note] = [note for note in plan_notes(made) if "on lookup" in note]
    assert note.startswith("arm 'last' on lookup: ")
    assert "protocol.pooling=last protocol.attention=causal" in note


def test_every_arm_is_fine_tuned_over_the_grid(plan):
    arms = {"untrained": [], "clm": [clm(4)]}
    made = plan(
        arms,
        tasks=[{"name": "pydocs-sc"}, {"name": "pydocs-tc"}],
        finetuning={"seeds": [0, 1, 2], "learning_rates": [1e-4, 2e-4]},
    )
    assert len(made.groups) == 2 * 2
    for group in made.groups:
        [runs] = group.runs.values()
        grid = [(rate, seed) for rate in (1e-4, 2e-4) for seed in (0, 1, 2)]
        assert [(run.learning_rate, run.seed) for run in runs] == grid
        assert [run.id for run in runs] == [*group.run_ids()]
    assert len(run_ids(made)) == 4 * 6
    assert made.tasks[0].num_examples == {"train": 12, "validation": 12, "test": 12}


def run_ids(made):
    return {name for group in made.groups for name in group.run_ids()}


TASK = [{"name": "pydocs-sc"}]
ARM = {"clm": [clm(4)]}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"title": "Other"},
        {"checkpoint_every": 3},
        {"heldout_every": 3},
        {"convention": "paper"},
    ],
)
def test_what_changes_no_number_changes_no_identity(plan, changes):
    before = plan(ARM, tasks=TASK)
    after = plan(ARM, tasks=TASK, **changes)
    assert [s.id for s in after.segments] == [s.id for s in before.segments]
    assert run_ids(after) == run_ids(before)


def test_a_protocol_renames_fine_tunings_alone(plan):
    before = plan(ARM, tasks=TASK)
    task = [{"name": "pydocs-sc", "protocol": {"batch_size": 7}}]
    after = plan(ARM, tasks=task)
    assert [s.id for s in after.segments] == [s.id for s in before.segments]
    assert not run_ids(after) & run_ids(before)


def test_arms_of_one_state_may_attend_differently(plan):
    """The fine-tunings are those of studies with this attention for all arms."""
    arms = {"opened": [], "decoder": {"attention": "causal"}, "again": {"attention": "causal"}}
    arms["both-ways"] = {"attention": "bidirectional"}
    made = plan(arms, tasks=TASK)
    assert len({arm.state for arm in made.arms}) == 1
    opened, causal = (
        plan({"one": []}, tasks=[{**TASK[0], "protocol": {"attention": attention}}])
        for attention in ("bidirectional", "causal")
    )
    assert run_ids(made) == run_ids(opened) | run_ids(causal)
    ids = {group.attention: group.id for group in made.groups}
    assert len(ids) == len(made.groups)
    assert made.jobs_by_arm() == {
        "opened": [made.arms[0].state, ids["bidirectional"]],
        "decoder": [made.arms[0].state, ids["causal"]],
        "again": [made.arms[0].state, ids["causal"]],
        "both-ways": [made.arms[0].state, ids["bidirectional"]],
    }
    padded = [{**TASK[0], "protocol": {"batching": "padded"}}]
    with pytest.raises(ConfigError, match=r"'pydocs-sc'.*attention: causal.*packed"):
        plan(arms, tasks=padded)


def test_another_corpus_renames_trained_states_but_not_the_untrained(plan):
    arms = {"untrained": [], **ARM}
    before = plan(arms)
    fingerprint = DataFingerprint("d" * 64, GROUND.tokenizer_sha256, GROUND.vocab_size)
    after = plan(arms, fingerprint=fingerprint)
    assert after.arms[0].state == before.arms[0].state
    assert after.arms[1].state != before.arms[1].state


def test_other_examples_rename_fine_tunings(plan, tmp_path, make_task):
    before = plan(ARM, tasks=TASK)
    make_task(tmp_path / "pydocs-sc", num_examples=10)
    assert not run_ids(plan(ARM, tmp_path, tasks=TASK)) & run_ids(before)


def finish(folder):
    with complete_folder(folder, identity=folder.name, id=folder.name) as partial:
        (partial / "content").write_text("content")
        for record in ("state.json", "result.json"):
            (partial / record).write_text("{}")


def test_only_incomplete_work_is_missing(plan):
    made = plan({"clm": [clm(4)], "two": [clm(2), mlm(2)]}, tasks=TASK)
    assert Finished.of(made).missing_segments() == list(made.segments)
    trunk, *rest = made.segments
    finish(made.store / "states" / trunk.id)
    (made.store / "states" / rest[0].id).mkdir()  # no manifest: not believed
    assert Finished.of(made).missing_segments() == rest
    group = made.groups[0]
    first, second = group.run_ids()
    finish(made.store / "finetunes" / second)
    assert group.missing_runs() == [first]
    # A group that is finished in part is missing.
    assert group in Finished.of(made).missing_groups()


@pytest.mark.parametrize("kind", ["parent", "final state", "result"])
def test_inputs_are_checked_before_anything_runs(plan, kind):
    arms = {"clm": [clm(4)], "two": [clm(2), mlm(2)]}
    made = plan(arms, tasks=TASK)
    folder = {
        "parent": made.store / "states" / made.segments[0].id,
        "final state": made.store / "states" / made.arms[1].state,
        "result": made.store / "finetunes" / next(made.groups[0].run_ids()),
    }[kind]
    finish(folder)
    check_inputs(made)
    (folder / "content").write_text("c0ntent")
    with pytest.raises(CheckpointError, match=r"content: damaged.*delete the folder"):
        check_inputs(made)
    shutil.rmtree(folder)
    check_inputs(made)


def test_a_damaged_state_that_is_not_needed_is_ignored(plan):
    made = plan(ARM)
    folder = made.store / "states" / made.segments[0].id
    finish(folder)
    (folder / "content").write_text("c0ntent")
    check_inputs(made)
    assert (folder / "content").read_text() == "c0ntent"


def test_questions_without_room_for_a_context_name_their_task(locate, tokenizer, tasks_folder):
    config = configure({"clm": [clm(2)]}, tasks=[{"name": "pydocs-sc"}])
    [task] = locate(config)
    asking = replace(task, info=replace(task.info, kind="qa"))
    with pytest.raises(ConfigError, match=r"'pydocs-sc': max_seqlen: 64 tokens"):
        check_lengths([asking.outline], tokenizer)
    check_lengths([task.outline], tokenizer)


@given(cut=st.integers(0, 19), other=st.integers(0, 19))
def test_training_resumes_from_the_last_existing_state(cut, other):
    """Whoever left it: another study, or a run of `pretrain`."""
    config = configure({"mlm": [mlm(10)], "both": [clm(6), mlm(14)]})
    whole = plan_of(config)
    arm = next(arm for arm in whole.arms if arm.name == "both")
    known = {arm.lineage.identities[cut], arm.lineage.identities[other]}
    again = plan_of(config, known=known)
    # Names of states stay; only what is trained to get there is less.
    assert [point.state for point in again.points] == [point.state for point in whole.points]
    assert [segment.id for segment in again.segments] == [s.id for s in whole.segments]
    [segment] = [s for s in again.segments if s.id == arm.state]
    [alone] = [s for s in whole.segments if s.id == arm.state]
    latest = max(cut, other)
    assert segment.start == max(latest, alone.start)
    assert segment.parent == (arm.lineage.identities[latest] if latest else alone.parent)
    [before], [after] = ([s for s in p.segments if s.arm.name == "mlm"] for p in (whole, again))
    assert (after.start, after.parent) == (before.start, before.parent) == (0, None)


def test_a_state_that_is_finished_is_planned_as_before():
    config = configure({"both": [clm(6), mlm(14)]})
    whole = plan_of(config)
    state = whole.arms[0].state
    again = plan_of(config, known={state})
    assert [(s.id, s.start, s.end, s.parent) for s in again.segments] == [
        (s.id, s.start, s.end, s.parent) for s in whole.segments
    ]
