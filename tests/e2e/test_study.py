"""The miniature study from its file to its report, and what a second run does."""

import csv
import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from biphasic.data.pairs import Pair, write_pairs
from biphasic.study.resolve import resolve
from biphasic.study.settings.load import load_study
from biphasic.study.study import Study
from mini_study import STEPS, STUDY, arms, results, snapshot, state, states, write_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn", "unprobed")]

TRAINED = [arm["name"] for arm in STUDY["arms"] if arm.get("phases")]
TASKS = [task["name"] for task in STUDY["tasks"]]
SEEDS = STUDY["finetuning"]["seeds"]


def lines_of(finished, arm):
    root = finished / "root"
    for segment in arms(root)[arm]["segments"]:
        text = (root / "store/states" / segment / "metrics.jsonl").read_text()
        yield from map(json.loads, text.splitlines())


def test_the_table_names_every_arm_with_its_interval(finished):
    table = (finished / "stdout").read_text()
    for arm in STUDY["arms"]:
        rows = [line for line in table.splitlines() if line.startswith(f"│ {arm['name']} ")]
        assert len(rows) == 1
        assert rows[0].count("±") == len(TASKS) - 1  # zero-shot has no interval
    assert "2 seeds" in table
    assert "Zero-shot" in table
    assert "Student's t" in table
    assert "report.html" in table


def test_every_fine_tuning_and_every_heldout_loss_is_a_row(finished):
    rows = list(csv.DictReader(io.StringIO(results(finished / "root").decode())))
    cells = {
        (row["arm"], row["task"], row["seed"])
        for row in rows
        if row["task"] != "pretraining" and not row["arm"].startswith(("floor:", "reference:"))
    }
    seeds = {task: [0] if task == "lookup" else SEEDS for task in TASKS}
    assert cells == {
        (arm["name"], task, str(seed))
        for arm in STUDY["arms"]
        for task in TASKS
        for seed in seeds[task]
    }
    losses = {row["arm"] for row in rows if row["task"] == "pretraining"}
    assert losses == {arm["name"] for arm in STUDY["arms"]}


def test_results_hold_no_times_paths_or_hosts(finished):
    header = results(finished / "root").decode().splitlines()[0]
    assert not {"seconds", "path", "host"} & set(header.split(","))
    assert str(finished) not in results(finished / "root").decode()


def test_held_out_losses_of_other_text_are_left_out(root, cli):
    path = root / "mini/study.json"
    study = json.loads(path.read_text())
    assert study["heldout_sha256"]
    path.write_text(json.dumps({**study, "heldout_sha256": "0" * 64}))
    assert cli("study", "report", root / "mini")[0] == 0
    assert b"heldout_mlm_loss" not in results(root)
    assert "evaluated on other held-out text" in (root / "mini/report/report.html").read_text()


def test_the_report_is_one_page_that_loads_nothing(finished):
    page = (finished / "root/mini/report/report.html").read_text()
    assert "<script src" not in page
    assert 'src="http' not in page
    assert all(arm["name"] in page for arm in STUDY["arms"])


@pytest.mark.parametrize("arm", TRAINED)
def test_the_ledger_is_the_sum_of_the_log(finished, arm):
    updates = [line for line in lines_of(finished, arm) if "loss" in line]
    assert [line["step"] for line in updates] == list(range(1, STEPS + 1))
    root = finished / "root"
    ledger = state(root, arms(root)[arm]["state"])["ledger"]
    phases = next(a["phases"] for a in STUDY["arms"] if a["name"] == arm)
    assert [(e["objective"], e["steps"]) for e in ledger] == [
        (phase["objective"], phase["steps"]) for phase in phases
    ]
    for entry in ledger:
        of_phase = [line for line in updates if line["phase"] == entry["phase"]]
        supervised = sum(line["supervised_tokens"] for line in of_phase)
        assert entry["supervised_tokens"] == supervised
    assert updates[-1]["tokens"] == sum(entry["tokens"] for entry in ledger)


def test_a_shared_segment_is_trained_once(finished):
    root = finished / "root"
    segments = {name: arm["segments"] for name, arm in arms(root).items()}
    assert segments["clm-25-mlm-75"][0] == segments["clm"][0]
    assert segments["clm-50-mlm-50"][:2] == segments["clm"][:2]
    # clm 0-3, 3-6, 6-12; one more for each other trained arm; the untrained model.
    assert len(states(root)) == 3 + 4 + 1
    steps = sum(
        '"loss"' in line
        for path in root.glob("store/states/*/metrics.jsonl")
        for line in path.read_text().splitlines()
    )
    assert steps == 12 + 12 + 9 + 6 + 12


def test_a_second_run_finds_all_finished_and_changes_nothing(finished, root, cli):
    before = snapshot(root)
    code, out, err = cli("study", "run", finished / "mini.yaml", "--root", root)
    assert code == 0
    assert "all finished; nothing to do" in out
    assert "done:" not in err
    assert snapshot(root) == before


def test_a_second_study_trains_only_what_differs(root, tmp_path, cli):
    before = snapshot(root / "store")
    arm = {
        "name": "clm-75",
        "phases": [{"objective": "clm", "steps": 9}, {"objective": "mlm", "steps": 3}],
    }
    study = write_study(
        tmp_path,
        name="other",
        arms=[*STUDY["arms"], arm],
        tasks=STUDY["tasks"][:1],
        finetuning={**STUDY["finetuning"], "seeds": [0, 1, 2]},
    )
    code, _, err = cli("study", "run", study, "--root", root, "--workers", "1")
    assert code == 0, err
    after = snapshot(root / "store")
    # Job files say what is to be done, and are written for each study anew.
    kept = {path: found for path, found in before.items() if not path.startswith("jobs/")}
    assert {path: after[path] for path in kept} == kept
    new = {tuple(path.split("/")[:2]) for path in set(after) - set(before)}
    # The trunk goes on from step 6 to 9, and there branches off.
    assert len([path for path in new if path[0] == "states"]) == 2
    # One more seed for each of six arms, three seeds for the new one.
    assert len([path for path in new if path[0] == "finetunes"]) == 6 + 3
    assert not [path for path in new if path[0] not in {"states", "finetunes", "jobs"}]


def test_a_state_is_compared_with_itself_as_it_attends(root, tmp_path, cli):
    before = snapshot(root / "store")
    [arm] = [arm for arm in STUDY["arms"] if arm["name"] == "clm"]
    causal = {**arm, "name": "decoder", "attention": "causal"}
    study = write_study(tmp_path, name="other", arms=[arm, causal], tasks=STUDY["tasks"][1:2])
    code, _, err = cli("study", "run", study, "--root", root, "--workers", "1")
    assert code == 0, err
    new = {tuple(path.split("/")[:2]) for path in set(snapshot(root / "store")) - set(before)}
    assert [kind for kind, _ in new if kind != "jobs"] == ["finetunes"] * 2  # one for each seed
    found = arms(root, "other")
    assert found["decoder"]["state"] == found["clm"]["state"]
    assert (found["decoder"]["attention"], "attention" in found["clm"]) == ("causal", False)
    with (root / "other/report/comparisons.csv").open(newline="") as rows:
        assert [(row["first"], row["second"]) for row in csv.DictReader(rows)] == [
            ("clm", "decoder")
        ]
    page = (root / "other/report/report.html").read_text()
    assert "decoder: attention in fine-tuning" in page
    assert "clm: attention" not in page


def test_words_change_the_report_and_run_nothing(root, tmp_path, cli):
    before = snapshot(root / "store")
    settings = ("--set", "title=Another title", "--set", "convention=paper")
    code, out, _ = cli("study", "run", write_study(tmp_path), "--root", root, *settings)
    assert code == 0
    assert "all finished; nothing to do" in out
    page = (root / "mini/report/report.html").read_text()
    for shown in ("Another title", "1.96"):
        assert shown in out
        assert shown in page
    assert snapshot(root / "store") == before


def test_an_arm_that_is_taken_out_leaves_the_report(root, tmp_path, cli):
    study = write_study(tmp_path, arms=STUDY["arms"][:2])
    code, out, _ = cli("study", "run", study, "--root", root)
    assert code == 0
    assert "clm-25-mlm-75" not in out
    assert b"clm-25-mlm-75" not in results(root)


def test_a_report_can_be_rewritten_from_records(root, cli):
    expected = results(root)
    (root / "mini/report/results.csv").unlink()
    code, out, _ = cli("study", "report", root / "mini")
    assert code == 0
    assert "report.html" in out
    assert results(root) == expected


def shipped():
    from pathlib import Path

    return sorted(Path(__file__).parents[2].glob("studies/*.yaml"))


def write_replication_data(folder):
    """Write one example of all that the replication's studies and `survives.yaml` read."""
    examples = {
        "sst2": {"text": "one word"},
        "trec": {"text": "one word"},
        "uner_en": {"tokens": ["one"], "tags": ["B-LOC"]},
    }
    for name, example in examples.items():
        for split in ("train", "validation", "test"):
            file = folder / name / f"{split}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = [{**example, "id": f"{split}-{n}", "label": n} for n in (0, 1)]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "pretrain").mkdir()
    (folder / "pretrain/one.jsonl").write_text('{"text": "one word"}\n')
    (folder / "scifact/qrels").mkdir(parents=True)
    (folder / "scifact/corpus.jsonl").write_text('{"_id": "d", "title": "", "text": "one"}\n')
    (folder / "scifact/queries.jsonl").write_text('{"_id": "q", "text": "one"}\n')
    for split in ("train", "validation", "test"):
        rows = "query-id\tcorpus-id\tscore\nq\td\t1\n"
        (folder / f"scifact/qrels/{split}.tsv").write_text(rows)
    (folder / "blimp.yaml").write_text("kind: mp\ntest: blimp.jsonl\n")
    pair = {"sentence_good": "one word", "sentence_bad": "word one", "UID": "order"}
    (folder / "blimp.jsonl").write_text(json.dumps(pair) + "\n")


def write_embedding_data(folder):
    """Write what `embeddings.yaml` reads besides: pairs, and tasks without training."""
    for name in ("cranfield", "cacm"):
        shutil.copytree(folder / "scifact", folder / name)
    for year in (12, 13, 14, 15):
        rows = [{"id": n, "text_a": "one", "text_b": n, "score": float(n == "1")} for n in "12"]
        (folder / f"sts{year}").mkdir()
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"sts{year}/test.jsonl").write_text(text)
    pairs = [Pair(f"query {n}", f"text {n}") for n in range(64)]
    write_pairs(folder / "pairs", pairs, origin={})
    unit = np.eye(1, 64, dtype=np.float32)
    embed = lambda texts: np.repeat(unit, len(texts), axis=0)  # noqa: E731
    write_pairs(folder / "taught", pairs, origin={}, embed=embed)


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_every_shipped_study_loads_and_plans(path, tmp_path):
    shutil.copytree(path.parent, tmp_path / "studies")  # relative paths begin there
    if path.stem.startswith(("replication", "survives", "length", "masking", "embeddings")):
        write_replication_data(tmp_path / "studies/data")
    if path.stem == "embeddings":
        write_embedding_data(tmp_path / "studies/data")
    if path.stem == "llm2vec":
        pairs = [Pair(f"query {n}", f"text {n}") for n in range(200)]
        write_pairs(tmp_path / "studies/pairs", pairs, origin={})
    config = load_study(tmp_path / "studies" / path.name)
    assert config.name == path.stem
    plan = resolve(Study(config, tmp_path), missing="placeholder").plan
    assert len(plan.arms) == len(config.arms)
    assert {point.state for point in plan.points} <= {segment.id for segment in plan.segments}
    assert {group.state for group in plan.groups} == {point.state for point in plan.points}


def test_a_state_is_evaluated_on_custom_tasks(finished, tmp_path, cli):
    root = finished / "root"
    model = root / "store/states" / arms(root)["mlm"]["state"]
    write_study(tmp_path)
    protocol = STUDY["finetuning"]["protocol"]
    settings = [f"--set={name}={value}" for name, value in protocol.items()]
    code, out, err = cli(
        *("evaluate", model, "--task", f"sc:{tmp_path}/own/first-word"),
        *("--task", f"zs:{tmp_path}/own/lookup", "--learning-rate", "5e-4", "--seed", "0"),
        *("--seed", "1", "--workers", "1", "--root", tmp_path / "root", *settings),
    )
    assert code == 0, err
    lines = out.splitlines()
    [accuracy] = [line for line in lines if line.startswith("first-word accuracy: ")]
    assert "±" in accuracy
    [zero_shot] = [line for line in lines if line.startswith("lookup-zs nDCG@10: ")]
    assert "±" not in zero_shot
    # What a study says of the same encoder, task and grid.
    rows = list(csv.DictReader(io.StringIO(results(root).decode())))
    scores = [
        float(row["test"]) for row in rows if (row["arm"], row["task"]) == ("mlm", "first-word")
    ]
    assert f": {100 * sum(scores) / len(scores):.2f} " in accuracy
    [score] = [row["test"] for row in rows if (row["arm"], row["task"]) == ("mlm", "lookup")]
    assert zero_shot.endswith(f": {100 * float(score):.2f}")
    line = lines[lines.index(zero_shot) + 1]
    [table] = [
        table.to_pydict()
        for path in (tmp_path / "root/store/finetunes").glob("*/scores.parquet")
        if "ndcg_at_10" in (table := pq.read_table(path)).column_names
        and json.loads(path.with_name("result.json").read_text())["state"]  # of no baseline
    ]
    pairs = zip(table["split"], table["ndcg_at_10"], strict=True)
    queries = np.array([100 * ndcg for split, ndcg in pairs if split == "test"])
    width = stats.t.ppf(0.975, len(queries) - 1) * queries.std(ddof=1) / len(queries) ** 0.5
    ends = f"{queries.mean() - width:.2f} to {queries.mean() + width:.2f}"
    assert line == f"  95 % interval over {len(queries)} queries: {ends}"


def test_results_of_two_evaluations_are_compared_by_one_command(finished, tmp_path, cli):
    root = finished / "root"
    write_study(tmp_path)

    def evaluated(name, *, steps):
        state = root / "store/states" / arms(root)[name]["state"]
        model = tmp_path / name
        model.unlink(missing_ok=True)
        model.symlink_to(state)
        code, out, err = cli(
            *("evaluate", model, "--task", f"sc:{tmp_path}/own/first-word", "--workers", "1"),
            *("--learning-rate", "5e-4", "--seed", "0", "--seed", "1"),
            *("--root", tmp_path / "root", "--set", f"max_steps={steps}", "--set", "max_seqlen=32"),
        )
        assert code == 0, err
        return float(out.split("accuracy: ")[1].split()[0])

    means = {name: evaluated(name, steps=4) for name in ("clm", "mlm")}
    best, other = sorted(means, key=means.__getitem__, reverse=True)
    code, out, err = cli("analyze", tmp_path / "root", "--compare")
    assert (code, err) == (0, "")
    assert f"{best} is {means[best] - means[other]:.2f} points above {other} " in out
    assert "2 paired seeds and 16 test examples" in out
    # Results by other settings are not comparable.
    evaluated("clm", steps=3)
    code, out, err = cli("analyze", tmp_path / "root", "--compare")
    assert code == 0
    assert err.startswith("mixed: first-word: evaluated with 2 settings")


def test_commands_that_compute_nothing_import_no_torch(finished, root, tmp_path):
    file = str(finished / "mini.yaml")
    study, [corpus] = str(root / "mini"), map(str, (root / "store/data").iterdir())
    commands = [
        ["study", "schema"],
        *(["study", *rest, "--root", str(root)] for rest in (
            ["plan", file, "--rate", "1e9"], ["diff", file, file], ["status", "mini"],
            ["run", file, "--quiet"], ["jobs", file], ["clean"], ["cancel", "mini"],
            ["report", "mini"],
        )),
        ["analyze", study],
        ["claims", study],
        ["figures", study, "--out", str(tmp_path / "figures"), "--format", "csv"],
        ["paper", "--out", str(tmp_path / "paper"), "--format", "md"],
        ["corpus", "inspect", corpus],
        ["corpus", "verify", corpus],
    ]  # fmt: skip
    program = f"""
import sys
from biphasic.cli.main import main
for arguments in {commands!r}:
    sys.argv = ["biphasic", *arguments]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, arguments
    heavy = {{"torch", "transformers", "datasets"}} & set(sys.modules)
    assert not heavy, (arguments, heavy)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
