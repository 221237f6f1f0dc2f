"""Results of mteb, of lm-evaluation-harness, and tables: scores, paired tests and groups."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fake_study import ARMS, TASKS, FakeStudy, write_json
from scipy.stats import ttest_rel
from typer.testing import CliRunner

from biphasic.api.scores import analyze, claims, compare, figures
from biphasic.cli.main import app
from biphasic.errors import DataError

NUM = 200
EARLIER, LATER = "2026-01-16T15-23-47.285735", "2026-01-17T01-00-00.1"


def samples(folder: Path, model: str, scores, *, task="copa", time=EARLIER):
    """Write a file of samples as lm-evaluation-harness 0.4.13 does."""
    path = folder / model / f"samples_{task}_{time}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    common = {"filter": "none", "metrics": ["acc"], "target": " a", "resps": [["x"]]}
    lines = [json.dumps({"doc_id": n, **common, "acc": score}) for n, score in enumerate(scores)]
    path.write_text("\n".join(lines) + "\n")


def task_file(folder: Path, model: str, revision: str, task: str, *scores: float):
    """Write a task's result as mteb 2.26 does, with a score for each language."""
    place = folder / "results" / model / revision
    place.mkdir(parents=True, exist_ok=True)
    (place / "model_meta.json").write_text(json.dumps({"name": model, "revision": revision}))
    parts = [
        {"main_score": score, "hf_subset": f"part-{n}", "languages": ["eng-Latn"]}
        for n, score in enumerate(scores)
    ]
    raw = {"dataset_revision": "1", "task_name": task, "mteb_version": "2.26.0",
           "scores": {"test": parts}, "evaluation_time": 1.0}  # fmt: skip
    (place / f"{task}.json").write_text(json.dumps(raw))


@pytest.fixture
def draws():
    """Answers of two models that agree on most examples."""
    draw = np.random.default_rng(3)
    ease = draw.random(NUM)
    return [(ease + 0.1 * draw.random(NUM) > 0.5 + worse).astype(float) for worse in (0.0, 0.06)]


def test_samples_of_a_harness_are_compared_in_pairs(tmp_path, draws):
    for model, scores in zip(("EleutherAI__a", "EleutherAI__b"), draws, strict=True):
        samples(tmp_path, model, scores)
    [row] = compare(tmp_path).table()
    assert (row["first"], row["second"]) == ("EleutherAI/a", "EleutherAI/b")
    assert row["difference"] == pytest.approx(100 * (draws[0] - draws[1]).mean())
    assert row["p"] == pytest.approx(ttest_rel(*draws).pvalue)
    assert row["verdict"] == "higher"
    # Unpaired, the same difference is far from clear.
    errors = [scores.var(ddof=1) / NUM for scores in draws]
    assert row["difference"] / 100 < 1.5 * np.sqrt(sum(errors))


def test_each_metric_and_filter_is_a_dataset_and_the_latest_file_counts(tmp_path):
    samples(tmp_path, "m", [0, 0], task="gsm8k")
    [earlier] = (tmp_path / "m").iterdir()  # with a metric that the later file lacks
    earlier.write_text(earlier.read_text().replace('"acc"', '"em"'))
    samples(tmp_path, "m", [1, 0], task="gsm8k", time=LATER)
    path = tmp_path / "m" / "samples_arc_2026-01-16T15-23-47.2.jsonl"
    rows = [
        {"doc_id": n, "filter": name, "metrics": ["acc", "f1"], "acc": n, "f1": ["gold", ["x"]]}
        for n in range(2)
        for name in ("none", "strict-match")
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "m" / "results_2026-01-16T15-23-47.2.json").write_text("{}")
    found = analyze(tmp_path)
    means = {row["dataset"]: row["mean"] for row in found.table()}
    assert means == {"arc": 50, "arc strict-match": 50, "gsm8k": 50, "ACC Average": 50}
    assert found.problems == ("left out: arc f1: the score of an example is not a number",)


def test_other_examples_under_the_same_numbers_are_named(tmp_path, draws):
    for model, changed, scores in (("a", 0, draws[0]), ("b", 0, draws[1]), ("c", 3, draws[1])):
        samples(tmp_path, model, scores)
        path = next((tmp_path / model).iterdir())
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{**row, "doc_hash": f"{row['doc_id'] < changed}{row['doc_id']}"} for row in rows]
        path.write_text("\n".join(map(json.dumps, rows)))
    expected = "mixed: copa: 3 of 200 examples differ between models, by their doc_hash"
    assert analyze(tmp_path).problems == (expected,)
    found = compare(tmp_path)
    verdicts = {(row["first"], row["second"]): row["verdict"] for row in found.table()}
    assert verdicts == {("a", "b"): "higher", ("a", "c"): "unknown"}


def test_examples_with_other_numbers_are_paired_by_their_hash(tmp_path, draws):
    for model, scores, numbers in (("a", draws[0], range(NUM)), ("b", draws[1], range(NUM)[::-1])):
        samples(tmp_path, model, scores)
        path = next((tmp_path / model).iterdir())
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [
            {**row, "doc_hash": f"h{row['doc_id']}", "doc_id": number}
            for row, number in zip(rows, numbers, strict=True)
        ]
        path.write_text("\n".join(map(json.dumps, rows)))
    [row] = compare(tmp_path).table()
    assert row["p"] == pytest.approx(ttest_rel(*draws).pvalue)


def test_metrics_that_are_better_if_lower_are_left_out(tmp_path):
    path = tmp_path / "m" / f"samples_crows_{EARLIER}.jsonl"
    path.parent.mkdir()
    rows = [
        {"doc_id": n, "filter": "none", "metrics": ["acc", "pct_stereotype"], "acc": n,
         "pct_stereotype": 1 - n}
        for n in range(2)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    summary = {"higher_is_better": {"crows": {"acc": True, "pct_stereotype": False}}}
    path.with_name(f"results_{EARLIER}.json").write_text(json.dumps(summary))
    found = analyze(tmp_path)
    assert [row["dataset"] for row in found.table()] == ["crows"]
    assert found.problems == (
        "left out: crows pct_stereotype: lower is better, and biphasic takes higher as better",
    )


def test_models_with_the_same_answers_are_compared(tmp_path, draws):
    for model in ("a", "b"):
        samples(tmp_path, model, draws[0])
    found = compare(tmp_path)
    assert [row["verdict"] for row in found.table()] == ["undecided"]
    assert any("have the same mean" in line for line in found.lines())


def test_examples_that_all_differ_alike_decide_nothing(tmp_path):
    for model, score in (("a", 1), ("b", 0)):
        table(tmp_path / model / "wic.csv", f"id,score\n1,{score}\n2,{score}\n3,{score}\n")
    found = compare(tmp_path)
    assert [(row["verdict"], row["p"]) for row in found.table()] == [("unknown", None)]
    text = "a is 100.00 points above b: every test example gives the same difference"
    assert any(text in line for line in found.lines())


def test_tasks_of_a_benchmark_with_other_languages_are_counted(tmp_path):
    for model, second in (("org__a", [0.5]), ("org__b", [0.5, 0.1])):
        task_file(tmp_path, model, "r1", "A", 0.2 if model == "org__a" else 0.1)
        task_file(tmp_path, model, "r1", "B", *second)
    expected = "1 of 2 tasks differ between models in their data: revision, splits or languages"
    assert analyze(tmp_path).problems == (f"mixed: MTEB: {expected}",)
    [row] = compare(tmp_path).table()
    assert (row["verdict"], row["p"], row["difference"]) == ("unknown", None, pytest.approx(15))
    assert any("scored on different examples" in line for line in compare(tmp_path).lines())


def test_the_average_over_filters_of_a_task_counts_its_examples_once(tmp_path, draws):
    for model, scores in zip(("a", "b"), draws, strict=True):
        samples(tmp_path, model, scores)
        path = next((tmp_path / model).iterdir())
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{**row, "filter": name} for name in ("strict-match", "flexible") for row in rows]
        path.write_text("\n".join(map(json.dumps, rows)))
    found = {row["dataset"]: row for row in compare(tmp_path).table()}
    average, alone = found["ACC Average"], found["copa strict-match"]
    assert average["p"] == pytest.approx(ttest_rel(*draws).pvalue)
    assert (average["low"], average["high"]) == pytest.approx((alone["low"], alone["high"]))


def test_filters_of_a_task_have_the_weight_of_one_task_in_an_average(tmp_path, draws):
    for model, scores in zip(("a", "b"), draws, strict=True):
        samples(tmp_path, model, 0.5 + scores / 4, task="boolq")
        samples(tmp_path, model, scores)
        path = next((tmp_path / model).glob("samples_copa_*"))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{**row, "filter": name} for name in "xyz" for row in rows]
        path.write_text("\n".join(map(json.dumps, rows)))
    means = {
        row["dataset"]: row["mean"] for row in analyze(tmp_path).table() if row["model"] == "a"
    }
    copa, boolq = 100 * draws[0].mean(), 100 * (0.5 + draws[0] / 4).mean()
    assert means["ACC Average"] == pytest.approx((copa + boolq) / 2)
    [average] = (row for row in compare(tmp_path).table() if row["dataset"] == "ACC Average")
    difference = draws[0] - draws[1]
    assert average["difference"] == pytest.approx(100 * difference.mean() * (1 + 1 / 4) / 2)
    # The mean of two independent samples.
    error = 100 * np.sqrt(difference.var(ddof=1) / NUM * (1 + 1 / 16) / 4)
    assert average["high"] - average["difference"] == pytest.approx(error * 1.96, rel=0.01)


def test_a_comparison_over_a_benchmark_counts_its_tasks(tmp_path):
    for model, scores in (("org__a", (0.5, 0.6, 0.9)), ("org__b", (0.4, 0.3, 0.8))):
        for name, score in zip("ABC", scores, strict=True):
            task_file(tmp_path, model, "r1", name, score)
    lines = "\n".join(compare(tmp_path).lines())
    assert "3 tasks" in lines
    assert "test examples" not in lines


def test_a_benchmark_is_compared_over_its_tasks(tmp_path):
    draw = np.random.default_rng(0)
    ease = draw.random(30)
    for place, model in enumerate(("org__a", "org__b", "org__c")):
        for number, score in enumerate(ease / 2 + 0.02 * draw.random(30) + 0.03 * (place < 2)):
            task_file(tmp_path, model, "r1", f"Task{number}", score, score + 0.1)
    found = analyze(tmp_path)
    assert {row["model"] for row in found.table()} == {"org/a", "org/b", "org/c"}
    assert {row["dataset"] for row in found.table()} == {"MTEB"}
    lines = "\n".join(found.compare().lines())
    assert "30 tasks" in lines
    assert "1 of 2 neighbouring ranks cannot be told apart" in lines
    assert "groups without a clear difference: org/" in lines
    assert figures(tmp_path, tmp_path / "drawn", formats=["csv"]).out.is_dir()


def test_two_revisions_of_a_model_are_two_models(tmp_path):
    for revision, score in (("r1", 0.2), ("r2", 0.4)):
        for task in ("A", "B"):
            task_file(tmp_path, "org__a", revision, task, score)
    assert {row["model"]: row["mean"] for row in analyze(tmp_path).table()} == {
        "org/a r1": pytest.approx(20),
        "org/a r2": pytest.approx(40),
    }


def table(path: Path, text: str):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_tables_have_an_id_and_a_score(tmp_path):
    table(tmp_path / "a/wic.csv", "id,correct\n1,true\n2,False\n3,TRUE\n")
    table(tmp_path / "b/wic.jsonl", '{"id": 1, "correct": true}\n{"id": 2, "correct": 1}\n')
    table(tmp_path / "b/notes.csv", "text\nnothing of ours\n")
    table(tmp_path / "b/inputs.csv", "id,text\n1,nothing of ours\n")
    table(tmp_path / "b/stsb.csv", "id,cosine_spearman\n1,0.5\n")
    found = analyze(tmp_path)
    # Both are scored on the examples that they share, 1 and 2.
    means = {row["model"]: row["mean"] for row in found.table() if row["dataset"] == "wic"}
    assert means == {"a": 50, "b": 100}
    metrics = {info.name: info.metric for info in found.scores.datasets}
    assert metrics == {"stsb": "cosine_spearman", "wic": "correct"}
    [problem] = found.problems
    assert problem == (
        "missing: b on wic: no score for 1 of 3 examples; all models are compared on the 2 that "
        "they share"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,score\n1,63.2\n", "the mean of score is 63.2, not within -1 and 1"),
        ("id,score\n1,0.5\n1,0.5\n", "row 2: id '1' occurs twice"),
        ("id,score\n1,nan\n", "row 1: score 'nan' is not a number"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path, text, message):
    table(tmp_path / "a/x.csv", text)
    with pytest.raises(DataError, match=message):
        analyze(tmp_path)


def test_a_damaged_file_is_left_out(tmp_path):
    samples(tmp_path, "a", [1, 0])
    samples(tmp_path, "b", [1, 0])
    path = next((tmp_path / "b").iterdir())
    path.write_text(path.read_text()[:-9])
    [problem] = analyze(tmp_path).problems
    assert problem.startswith("damaged: b/samples_copa")


def test_models_without_a_common_example_are_named(tmp_path):
    table(tmp_path / "a/x.csv", "id,score\n1,0\n")
    table(tmp_path / "b/x.csv", "id,score\n2,0\n")
    with pytest.raises(DataError, match="on the 0 that they share"):
        analyze(tmp_path)


def test_claims_on_examples_say_nothing_of_seeds(tmp_path, draws):
    for model, scores in zip(("610m-clm-42k", "610m-mlm40-42k"), draws, strict=True):
        samples(tmp_path, model, scores)
    text = "\n".join(claims(tmp_path).lines())
    assert "a paired test over test examples, corrected" in text
    assert "seeds" not in text.rpartition("29 claims")[2]


def test_results_without_rates_have_no_scores_at_one_rate(tmp_path, draws):
    samples(tmp_path, "a", draws[0])
    with pytest.raises(DataError, match="no scores of all seeds at one rate; omit --one-rate"):
        analyze(tmp_path, one_rate=True)


def test_the_command_says_what_is_over_examples(tmp_path, draws):
    for model, scores in zip("ab", draws, strict=True):
        samples(tmp_path, model, scores)
    result = CliRunner().invoke(app, ["analyze", str(tmp_path), "--compare"])
    assert result.exit_code == 0, result.output
    assert "200 test examples" in result.stdout
    assert "seed" not in result.stdout
    figures(tmp_path, tmp_path / "out", formats=["md"])
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "an exploratory test over test examples, corrected for all pairs" in text
    assert "seed" not in text
    assert "0 steps" not in text  # of training, of which nothing is known


def test_a_column_that_is_named_twice_is_a_problem(tmp_path):
    table(tmp_path / "m/d.csv", "id,score,score\n1,0.5,0.9\n")
    with pytest.raises(DataError, match=r": m/d\.csv:1: the column 'score' is named twice"):
        analyze(tmp_path)


ROW = '{"doc_id": %d, "filter": "none", "metrics": ["acc"], "acc": %.1f}\n'
MTEB = '{"task_name": "A", "scores": {"test": [{"main_score": %.1f, "hf_subset": "default"}]}}'
SAMPLES = f"samples_t_{EARLIER}.jsonl"


@pytest.mark.parametrize(
    "files",
    [
        {f"m/{SAMPLES}": ROW % (0, 1) + ROW % (1, 1) + ROW % (0, 0)},
        {f"a__b/{SAMPLES}": ROW % (0, 1), f"a/b/{SAMPLES}": ROW % (0, 0)},
        {"m/r/A.json": MTEB % 0.9, "m/r/A_copy.json": MTEB % 0.1},
        {"m/d.csv": "id,correct,score\n1,1,0.1\n2,0,0.9\n"},
        {"m/d.csv": "id,score\n1,0.5\n", "m/d.jsonl": '{"id": 1, "score": 0.9}'},
        {"m/d.jsonl": '{"id": 1, "score": 0.9, "score": 0.1}'},
        {"m/r/A.json": MTEB.replace("}]", '}, {"main_score": 0.1, "hf_subset": "default"}]') % 0.9},
    ],
    ids=[
        "doc_id twice",
        "a__b and a/b",
        "two files of a task",
        "score and correct",
        "two tables of a dataset",
        "key twice",
        "subset twice",
    ],
)
def test_no_score_replaces_another_in_silence(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shown = CliRunner().invoke(app, ["analyze", str(tmp_path)])
    said = f"{shown.stderr}{shown.exception}"  # an error, if nothing else is left
    assert any(Path(name).name in said for name in files)


def test_examples_of_a_cluster_are_not_independent(tmp_path):
    draw, num_sets = np.random.default_rng(0), 40
    for number in range(num_sets):
        shared = draw.normal(size=(20, 1))
        for model in "ab":
            scores = shared + draw.normal(size=(20, 1)) + 0.5 * draw.normal(size=(20, 10)) < 0.5
            lines = [
                json.dumps({"id": f"c{n // 10}-q{n % 10}", "cluster": f"c{n // 10}", "score": s})
                for n, s in enumerate(scores.astype(int).ravel().tolist())
            ]
            (tmp_path / model).mkdir(exist_ok=True)
            (tmp_path / model / f"d{number}.jsonl").write_text("\n".join(lines) + "\n")
    rows = [row for row in compare(tmp_path).table() if row["dataset"].startswith("d")]
    assert len(rows) == num_sets
    # Each p value is that of the t test over means of clusters, which are of equal size.
    means = {
        model: np.array([json.loads(line)["score"] for line in path.read_text().splitlines()])
        .reshape(20, 10)
        .mean(axis=1)
        for model in "ab"
        for path in [tmp_path / model / "d0.jsonl"]
    }
    [row] = [row for row in rows if row["dataset"] == "d0"]
    assert row["p"] == pytest.approx(ttest_rel(*means.values()).pvalue)
    # Equal models: 5 % of 40 are two; seven or more happen once in two hundred times.
    assert sum(row["verdict"] in {"higher", "lower"} for row in rows) < 7


def test_the_report_names_the_number_of_clusters(tmp_path, draws):
    for model, scores in zip("ab", draws, strict=True):
        (tmp_path / model).mkdir()
        lines = [
            json.dumps({"id": n, "cluster": n // 10, "score": s}) for n, s in enumerate(scores)
        ]
        (tmp_path / model / "d.jsonl").write_text("\n".join(lines) + "\n")
    assert "200 test examples in 20 clusters" in str(compare(tmp_path))


@pytest.mark.parametrize(
    ("rows", "fact"),
    [
        ([{"cluster": "x"}, {}], "row 2: rows with and without a 'cluster'"),
        ([{"cluster": "x"}, {"cluster": "y"}], "row 2: cluster 'y', but 'x' in another"),
    ],
)
def test_wrong_clusters_are_refused(tmp_path, rows, fact):
    for model, clusters in {"a": [{"cluster": "x"}] * 2, "b": rows, "c": [{}] * 2}.items():
        (tmp_path / model).mkdir()
        lines = [json.dumps({"id": n, "score": 1, **own}) for n, own in enumerate(clusters)]
        (tmp_path / model / "d.jsonl").write_text("\n".join(lines) + "\n")
    [problem] = analyze(tmp_path).problems
    assert "d.jsonl" in problem
    assert fact in problem


def test_clusters_of_some_examples_alone_test_nothing(tmp_path):
    # The metrics make two datasets of one task, whose examples are the same.
    rows = [
        [{"id": n, "score": 1, "cluster": 0} for n in range(10)],
        [{"id": n, "f1": n % 2} for n in range(20)],
        [{"id": n, "f1": n % 3 / 3} for n in range(20)],
    ]
    for model, of_model in zip("abc", rows, strict=True):
        (tmp_path / model).mkdir()
        lines = map(json.dumps, of_model)
        (tmp_path / model / "d.jsonl").write_text("\n".join(lines) + "\n")
    [row] = compare(tmp_path).table()
    assert (row["dataset"], row["verdict"]) == ("d f1", "unknown")


def test_encoders_of_one_name_are_told_apart_by_their_states(tmp_path):
    written = FakeStudy(
        steps=40, arms=ARMS[1:3], tasks=TASKS[:2], learning_rates=(1e-4,), seeds=(0,)
    )
    folder, store = written.write(tmp_path)
    record = json.loads((folder / "study.json").read_text())
    # Of each task, the first result is that of the first encoder.
    runs = sorted(record["runs"], key=lambda run: (run["task"], run["arm"]))
    for number, run in enumerate(runs):
        pin = {"made_by": "evaluate", "name": "final", "results": [run["id"]]}
        write_json(store / "pins" / f"{number}.json", pin)
    shutil.rmtree(folder)
    states = {f"final {arm['state'][:6]}" for arm in record["arms"]}
    tasks = {task["name"] for task in record["tasks"]}
    found = {(row["model"], row["dataset"]) for row in analyze(tmp_path).table()}
    assert found == {*product(states, tasks)}


def test_diverged_runs_of_evaluate_count_as_tried(tmp_path):
    (mlm, *_), (clm, *_), (both, *_) = arms = ARMS[1:4]
    [(task, *_)] = TASKS[:1]
    rates, seeds = (1e-4, 2e-4, 5e-4), range(3)
    diverged = {(mlm, task, 5e-4, seed) for seed in seeds}
    diverged |= {(clm, task, rate, 0) for rate in rates}
    scores = {(name, task, 2e-4, seed): (0.9, 0.9) for name in (mlm, clm) for seed in seeds}
    written = FakeStudy(
        steps=40, arms=arms, tasks=TASKS[:1], learning_rates=rates, seeds=tuple(seeds),
        diverged=diverged, missing={(both, task, 5e-4, 2)}, scores=scores,
    )  # fmt: skip
    folder, store = written.write(tmp_path)
    runs = json.loads((folder / "study.json").read_text())["runs"]
    for name in (mlm, clm, both):
        results = [run["id"] for run in runs if run["arm"] == name]
        pin = {"made_by": "evaluate", "name": name, "results": results}
        write_json(store / "pins" / f"{name}.json", pin)
    shutil.rmtree(folder)
    found = analyze(tmp_path)
    marks = {row["model"]: (row["is_complete"], row["is_at_end"]) for row in found.table()}
    assert marks[mlm] == (True, False)
    assert marks[clm] == (False, False)
    assert not marks[both][0]
    assert sum("diverged after" in problem for problem in found.problems) == 6
