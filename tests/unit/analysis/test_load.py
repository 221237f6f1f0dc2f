import json
import shutil

import pytest
from fake_study import ARMS, FakeStudy, seal_again

from biphasic.analysis.records import load_records
from biphasic.errors import DataError, NewerFormatError
from biphasic.store import MANIFEST


def small_study(**changes):
    return FakeStudy(steps=40, learning_rates=(2e-4,), seeds=(0, 1), **changes)


def kinds(records):
    return sorted(problem.kind for problem in records.problems)


def rewrite(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite_sealed(path, **changes):
    rewrite(path, **changes)
    seal_again(path.parent)


def any_result(store):
    return sorted(store.glob("finetunes/*/result.json"))[0]


def test_an_arm_s_curve_is_its_segments_chained(tmp_path):
    records = load_records(*small_study().write(tmp_path))
    assert records.problems == ()
    arm = {arm.name: arm for arm in records.arms}["clm-25-mlm-75"]
    assert arm.losses["training", "clm"].steps.tolist() == list(range(1, 11))
    assert arm.losses["training", "mlm"].steps.tolist() == list(range(11, 41))
    assert set(arm.losses["training", "mlm"].phases.tolist()) == {1}
    assert arm.losses["heldout", "mlm"].steps.tolist() == list(range(2, 41, 2))
    assert arm.losses["heldout", "mlm"].tokens[-1] == 40 * 8192
    assert [(s.start_step, s.end_step) for s in arm.segments] == [(0, 10), (10, 20), (20, 40)]
    assert [s.tokens for s in arm.segments] == [10 * 8192, 10 * 8192, 20 * 8192]


def test_of_a_step_logged_twice_the_later_line_counts(tmp_path):
    folder, store = small_study(arms=ARMS[1:2]).write(tmp_path)
    for path in store.glob("states/*/metrics.jsonl"):
        lines = path.read_text().splitlines()
        again = [json.dumps({**json.loads(lines[0]), "loss": 77.0})]
        path.write_text("\n".join([*lines, *again]) + "\n")
        seal_again(path.parent)
    curve = load_records(folder, store).arms[0].losses["training", "mlm"]
    assert curve.steps.tolist() == list(range(1, 41))
    assert curve.losses[[0, 10, 20]].tolist() == [77.0] * 3
    assert (curve.losses == 77.0).sum() == 3


def test_the_untrained_encoder_has_a_loss_and_no_curve(tmp_path):
    floor = load_records(*small_study().write(tmp_path)).arms[0]
    assert floor.is_untrained
    assert floor.final_heldout == {"clm": 9.01, "mlm": 9.01}
    assert not floor.losses
    assert floor.segments == ()


def test_a_final_loss_that_was_not_logged_comes_from_the_state(tmp_path):
    folder, store = small_study(arms=ARMS[1:2]).write(tmp_path)
    for path in store.glob("states/*/metrics.jsonl"):
        lines = [line for line in path.read_text().splitlines() if "heldout" not in line]
        path.write_text("\n".join(lines) + "\n")
        seal_again(path.parent)
    curve = load_records(folder, store).arms[0].losses["heldout", "mlm"]
    assert curve.steps.tolist() == [40]
    assert curve.tokens.tolist() == [40 * 8192]


def test_missing_and_diverged_runs_are_named(tmp_path):
    study = small_study(
        missing={("mlm", "pydocs-sc", 2e-4, 0)}, diverged={("clm", "pydocs-qa", 2e-4, 1)}
    )
    records = load_records(*study.write(tmp_path))
    texts = {problem.kind: problem.text for problem in records.problems}
    assert texts == {
        "missing": "mlm on pydocs-sc, learning rate 2e-4, seed 0: not run yet",
        "diverged": "clm on pydocs-qa, learning rate 2e-4, seed 1: diverged after 200 steps",
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text(path.read_text()[:50]),
        lambda path: path.write_text(path.read_text().replace('"seconds": 7.25', '"seconds": NaN')),
        lambda path: rewrite(path, test=None),
        lambda path: rewrite(path, state="another"),
        lambda path: rewrite(path, seed=77),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text("[]"),
    ],
    ids=["truncated", "nan", "no-test", "other-state", "other-seed", "binary", "list"],
)
def test_a_damaged_result_is_named_and_has_no_score(tmp_path, spoil):
    folder, store = small_study().write(tmp_path)
    spoil(any_result(store))
    seal_again(any_result(store).parent)
    records = load_records(folder, store)
    assert kinds(records) == ["damaged"]
    assert "result.json" in records.problems[0].text
    [damaged] = [run for run in records.runs if records.status(run) == "damaged"]
    assert records.scores_of(damaged, "accuracy") == (None, None)


def test_a_result_changed_after_it_was_sealed_is_not_believed(tmp_path):
    folder, store = small_study().write(tmp_path)
    path = any_result(store)
    path.write_text(path.read_text().replace('"steps": 200', '"steps": 201'))
    records = load_records(folder, store)
    assert kinds(records) == ["damaged"]
    assert "SHA-256" in records.problems[0].text


@pytest.mark.parametrize("kind", ["finetunes", "states"])
def test_a_record_without_a_manifest_does_not_count(tmp_path, kind):
    """Whoever edits a record and deletes its manifest gets no other number."""
    folder, store = small_study(arms=ARMS[1:2]).write(tmp_path)
    path = sorted(store.glob(f"{kind}/*/[rs]*.json"))[-1]
    path.write_text(path.read_text().replace(": 0.", ": 0.9").replace(": 4.", ": 1."))
    path.with_name(MANIFEST).unlink()
    records = load_records(folder, store)
    assert set(kinds(records)) == {"damaged"}
    assert all("incomplete (no manifest.json)" in problem.text for problem in records.problems)
    states = [arm.state for arm in records.arms]
    states += [segment.state for arm in records.arms for segment in arm.segments]
    assert path.parent.name not in [*states, *(run.id for run in records.results)]
    assert len(records.results) == len(records.runs) - (kind == "finetunes")


def test_a_copy_of_another_run_s_folder_does_not_count(tmp_path):
    folder, store = small_study().write(tmp_path)
    one, other, *_ = sorted(path.parent for path in store.glob("finetunes/*/result.json"))
    shutil.rmtree(other)
    shutil.copytree(one, other)
    records = load_records(folder, store)
    assert kinds(records) == ["damaged"]
    assert f"holds fine-tuning {one.name[:12]}, not {other.name[:12]}" in records.problems[0].text


def test_a_result_listed_for_another_arm_too_counts_for_its_own_alone(tmp_path):
    folder, store = small_study(arms=ARMS[1:3]).write(tmp_path)
    record = json.loads((folder / "study.json").read_text())
    record["runs"][0]["id"] = next(r["id"] for r in record["runs"] if r["arm"] == ARMS[2][0])
    (folder / "study.json").write_text(json.dumps(record))
    records = load_records(folder, store)
    assert kinds(records) == ["damaged"]
    first, *others = records.runs
    assert records.status(first) == "damaged"
    assert records.scores_of(first, "accuracy") == (None, None)
    assert {records.status(run) for run in others} == {"finished"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: line[:15],
        lambda line: line.replace('"loss": ', '"loss": NaN, "was": '),
        lambda line: line.replace('"tokens": ', '"tokens": 9223372036854775808, "was": '),
    ],
    ids=["cut", "not a number", "a number of 64 bits"],
)
def test_a_damaged_line_of_metrics_is_named_with_its_number(tmp_path, spoil):
    folder, store = small_study(arms=ARMS[1:2]).write(tmp_path)
    path = sorted(store.glob("states/*/metrics.jsonl"))[0]
    lines = path.read_text().splitlines()
    damaged = spoil(lines[0])
    assert damaged != lines[0]
    path.write_text("\n".join([*lines, damaged]))
    seal_again(path.parent)
    records = load_records(folder, store)
    assert kinds(records) == ["damaged"]
    assert f"metrics.jsonl:{len(lines) + 1}" in records.problems[0].text


def test_an_untrained_state_that_does_not_exist_is_missing(tmp_path):
    folder, store = small_study(arms=ARMS[1:2]).write(tmp_path)
    state = load_records(folder, store).arms[0].record.state
    (store / "states" / state / "state.json").unlink()
    records = load_records(folder, store)
    assert records.arms[0].state is None
    assert "missing" in kinds(records)
    assert any(state[:12] in problem.text for problem in records.problems)


def test_a_run_listed_twice_counts_once(tmp_path):
    folder, store = small_study().write(tmp_path)
    raw = json.loads((folder / "study.json").read_text())
    rewrite(folder / "study.json", runs=[*raw["runs"], raw["runs"][0]])
    records = load_records(folder, store)
    assert kinds(records) == ["damaged"]
    assert len(records.runs) == len(raw["runs"])


def test_a_state_under_another_s_name_is_damaged(tmp_path):
    folder, store = small_study(arms=ARMS[1:2]).write(tmp_path)
    paths = sorted(store.glob("states/*/state.json"))
    rewrite_sealed(paths[0], identity="0" * 64)
    records = load_records(folder, store)
    assert kinds(records) == ["damaged"]
    assert records.problems[0].text.endswith("belongs to state 000000000000; skipped")


def test_different_machines_are_flagged(tmp_path):
    folder, store = small_study().write(tmp_path)
    states = sorted(store.glob("states/*/state.json"))
    trained = next(path for path in states if json.loads(path.read_text())["step"])
    rewrite_sealed(trained, environment={"torch": "2.14.0", "device": "cpu"})
    problems = load_records(folder, store).problems
    assert [problem.kind for problem in problems] == ["mixed"]
    assert '"2.13.0", "2.14.0"' in problems[0].text
    # Compute settings that round differently are flagged too.
    compute = {"predicted_only": True, "compile": True, "read_back_every": 10}
    rewrite_sealed(trained, environment={}, compute=compute)
    other = next(
        path for path in states if path != trained and json.loads(path.read_text())["step"]
    )
    rewrite_sealed(other, compute={**compute, "compile": False, "read_back_every": None})
    [problem] = load_records(folder, store).problems
    assert problem.text == "arms were trained under different compile: false, true"


def test_a_state_that_all_arms_continue_from_may_be_from_another_machine(tmp_path):
    folder, store = small_study(arms=ARMS[3:]).write(tmp_path)
    steps = {
        path: json.loads(path.read_text())["step"] for path in store.glob("states/*/state.json")
    }
    [shared] = (path for path, step in steps.items() if step == 10)
    rewrite_sealed(shared, environment={"torch": "2.14.0"}, compute={"processes": 2})
    assert load_records(folder, store).problems == ()
    own = next(path for path, step in steps.items() if step == 40)
    rewrite_sealed(own, environment={"torch": "2.14.0"})
    assert kinds(load_records(folder, store)) == ["mixed"]


def test_an_arm_that_ends_where_another_continues_on_another_machine_is_flagged(tmp_path):
    ends = ("clm", "CLM", "CLM", (("clm", 0.5),), 0.06)
    folder, store = small_study(arms=(ends, ARMS[4])).write(tmp_path)
    states = {
        json.loads(path.read_text())["step"]: path for path in store.glob("states/*/state.json")
    }
    rewrite_sealed(states[20], environment={"torch": "2.14.0"})
    assert kinds(load_records(folder, store)) == ["mixed"]


def test_a_missing_zero_shot_run_has_no_learning_rate(tmp_path):
    task = ("pydocs-zs", "zs", "Zero-shot", "ndcg_at_10", 0.2)
    study = FakeStudy(
        steps=40, arms=ARMS[:1], tasks=(task,), learning_rates=(0.0,), seeds=(0,),
        missing={("untrained", "pydocs-zs", 0.0, 0)},
    )  # fmt: skip
    [problem] = load_records(*study.write(tmp_path)).problems
    assert problem.text.startswith("untrained on pydocs-zs: ")


def test_scores_of_one_task_from_different_devices_are_flagged(tmp_path):
    folder, store = small_study(arms=ARMS[:2]).write(tmp_path)
    results = sorted(store.glob("finetunes/*/result.json"))
    of_task = [path for path in results if json.loads(path.read_text())["task"] == "pydocs-sc"]
    for number, path in enumerate(results):
        rewrite_sealed(path, device=f"cuda:{number % 2}")
    assert load_records(folder, store).problems == ()
    rewrite_sealed(of_task[0], device="cpu")
    [problem] = load_records(folder, store).problems
    assert problem.kind == "mixed"
    assert "pydocs-sc" in problem.text
    assert "cpu and cuda" in problem.text
    assert "pydocs-tc" not in problem.text


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, DataError),
        ("{", DataError),
        ('{"format": "biphasic.study/9"}', NewerFormatError),
    ],
)
def test_without_a_readable_study_there_is_one_clear_error(tmp_path, content, error):
    if content is not None:
        (tmp_path / "study.json").write_text(content)
    with pytest.raises(error, match=r"study\.json"):
        load_records(tmp_path, tmp_path)
