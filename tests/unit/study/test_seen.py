"""Test examples that occur in the training corpus are counted once, and the study says so."""

from __future__ import annotations

import json

import pytest
import yaml

from biphasic.study.inputs import tasks as inputs
from biphasic.study.maintenance import clean
from biphasic.study.run.record import study_record
from biphasic.study.study import Study
from small_root import prepare, study_of, write_texts

DOCUMENT = [f"word{n}" for n in range(30)]
SEEN = [
    " ".join(DOCUMENT),
    "Word3, word4: WORD5 word6  word7 (word8) word9 word10!",  # one run of eight words
    # 9 runs of eight words, of which the document has the first 5.
    " ".join([*DOCUMENT[:12], *(f"other{n}" for n in range(4))]),
]
NEW = [
    " ".join([*DOCUMENT[:11], *(f"other{n}" for n in range(5))]),  # 4 of 9 runs
    " ".join(DOCUMENT[:7]),  # shorter than a run, and not the whole document
    "nothing like it",
]
NOTE = "3 of 6 test examples occur in the training corpus"


@pytest.fixture
def config(tmp_path, make_task):
    texts = write_texts(tmp_path)
    with texts.open("a") as file:
        file.write("\n" + json.dumps({"text": f"before it {' '.join(DOCUMENT)} and after"}))
    task = make_task(tmp_path / "first")
    rows = [{"id": str(n), "text": t, "label": n % 2} for n, t in enumerate([*SEEN, *NEW])]
    (task / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return study_of(texts, task)


@pytest.fixture
def file(config, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    return path


def test_plan_record_and_report_say_how_many_test_examples_were_seen(file, tmp_path, cli):
    root = tmp_path / "runs"
    plan = ("study", "plan", file, "--root", root)
    assert "training corpus" not in cli(*plan)[1]
    code, _, said = cli("study", "jobs", file, "--root", root)
    assert code == 0
    assert f"task 'first': {NOTE}" in said
    assert f"note     task 'first': {NOTE}" in cli(*plan)[1]
    [task] = json.loads((root / "one/study.json").read_text())["tasks"]
    assert task["num_seen"] == 3
    assert f"{NOTE}." in (root / "one/report/report.html").read_text()


def test_test_examples_are_looked_for_once(config, tmp_path):
    prepare(config, tmp_path / "runs")
    [path] = (tmp_path / "runs/store/overlaps").iterdir()
    before = path.stat().st_mtime_ns
    prepare(config, tmp_path / "runs")
    assert path.stat().st_mtime_ns == before
    assert [*path.parent.iterdir()] == [path]


def test_an_example_of_two_texts_counts_by_one_and_retrieval_by_its_queries(
    config, tmp_path, make_retrieval
):
    pairs, lookup = tmp_path / "pairs", make_retrieval(tmp_path / "lookup", kind="zs")
    pairs.mkdir()
    rows = [(NEW[0], SEEN[0]), (SEEN[1], NEW[1]), (NEW[0], NEW[2]), (NEW[2], NEW[1])]
    lines = [f"{one}\t{other}\t{score}" for score, (one, other) in enumerate(rows)]
    header = "sentence1\tsentence2\tscore"
    for split in ("train", "validation", "test"):
        (pairs / f"{split}.tsv").write_text("\n".join([header, *lines]) + "\n")
    queries = [json.loads(line) for line in (lookup / "queries.jsonl").read_text().splitlines()]
    for query, text in zip(queries[-3:], SEEN[:1] + NEW[:2], strict=True):  # those of the test
        query["text"] = text
    (lookup / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    tasks = [
        {"name": "pairs", "source": f"sts:{pairs}"},
        {"name": "lookup", "source": f"zs:{lookup}"},
    ]
    study = study_of(config.corpus.sources[0].source, tmp_path / "first", tasks=tasks)
    record = study_record(prepare(study, tmp_path / "runs"))
    assert {task.name: task.num_seen for task in record.tasks} == {"pairs": 2, "lookup": 1}


def test_a_corpus_that_takes_too_long_is_not_read_and_the_run_says_so(
    file, tmp_path, cli, monkeypatch
):
    monkeypatch.setattr(inputs, "MOST_TOKENS", 1000)  # no test can have that much text
    code, _, said = cli("study", "jobs", file, "--root", tmp_path / "runs")
    assert code == 0
    assert "test examples were not looked for in the training corpus: it has" in said
    assert "6.55 K tokens, more than 1 K" in said
    assert "num_seen" not in (tmp_path / "runs/one/study.json").read_text()


def test_counts_that_no_study_needs_are_cleaned(config, tmp_path):
    root = tmp_path / "runs"
    Study(config, root).save()
    prepare(config, root)
    [needed] = (root / "store/overlaps").iterdir()
    other = needed.with_name("0" * 32 + ".json")
    other.write_text(needed.read_text())
    assert [item.path for item in clean(root, delete=True).items] == [other]
    assert needed.is_file()


@pytest.mark.parametrize("content", ['{"num_seen": 7}', '{"num_seen": "3"}', "{}", "{"])
def test_a_damaged_count_is_named(config, tmp_path, content, file, cli):
    prepare(config, tmp_path / "runs")
    [path] = (tmp_path / "runs/store/overlaps").iterdir()
    path.write_text(content)
    code, _, error = cli("study", "plan", file, "--root", tmp_path / "runs")
    assert code == 2
    assert str(path) in error
    assert "delete it" in error
