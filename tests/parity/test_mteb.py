"""mteb's own numbers: our judges give the same, and each model gets its own.

Skipped where mteb, the package with the weights or the development data are absent.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import signal
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

if importlib.util.find_spec("mteb") is None:  # not imported here: it takes seconds
    pytest.skip("mteb is not installed", allow_module_level=True)

from biphasic import analyze, evaluate, run_mteb
from biphasic.cli.main import app
from biphasic.errors import ConfigError, DataError, ModelError
from biphasic.evaluation import benchmark
from biphasic.files import write_text
from biphasic.study.resolve import resolve
from biphasic.study.study import Study
from biphasic.tasks.source import load_mteb, mteb_task
from tiny_study import tiny_study
from tiny_use import link_model, write_jsonl, write_model

# Beside the checkout; none of it is part of the project.
DATA = Path(__file__).parents[2].parent / "shared" / "data" / "tasks"
NUM_PAIRS, NUM_QUERIES, NUM_DOCUMENTS, MAX_SEQLEN = 40, 5, 20, 32
# All slow, so that one test process imports mteb.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unprobed", "one_thread")]


def read(path: Path, number: int | None = None) -> list[dict]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, number)]


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Path:
    """Part of STS 2015, and of cranfield, as our tasks."""
    if not DATA.is_dir():
        pytest.skip(f"the development data are not in {DATA}")
    folder = tmp_path_factory.mktemp("ours")
    write_jsonl(folder / "sts.jsonl", read(DATA / "sts/sts15/test.jsonl", NUM_PAIRS))
    cranfield = folder / "cranfield"
    (cranfield / "qrels").mkdir(parents=True)
    lines = (DATA / "ir/cranfield/qrels/test.tsv").read_text().splitlines()
    judged = [line.split("\t") for line in lines[1:]]
    queries = list(dict.fromkeys(query for query, *_ in judged))[:NUM_QUERIES]
    judged = [row for row in judged if row[0] in queries]
    wanted = {document for _, document, _ in judged}
    corpus = read(DATA / "ir/cranfield/corpus.jsonl")
    documents = [row for row in corpus if row["_id"] in wanted]
    documents += [row for row in corpus if row["_id"] not in wanted][:NUM_DOCUMENTS]
    write_jsonl(cranfield / "corpus.jsonl", documents)
    rows = [r for r in read(DATA / "ir/cranfield/queries.jsonl") if r["_id"] in queries]
    write_jsonl(cranfield / "queries.jsonl", rows)
    text = "\n".join("\t".join(row) for row in [["query-id", "corpus-id", "score"], *judged])
    (cranfield / "qrels/test.tsv").write_text(text + "\n")
    return folder


@pytest.fixture(scope="module")
def copies(ours, tmp_path_factory) -> Path:
    """The same data as mteb has them on the hub, each as the task of a type."""
    folder = tmp_path_factory.mktemp("copies")
    (folder / "STS15").mkdir()
    sentences = [
        {"sentence1": row["text_a"], "sentence2": row["text_b"], "score": row["score"]}
        for row in read(ours / "sts.jsonl")
    ]
    write_jsonl(folder / "STS15/test.jsonl", sentences)
    retrieval = folder / "scifact"  # the name of the repository
    shutil.copytree(ours / "cranfield", retrieval, ignore=shutil.ignore_patterns("qrels"))
    (retrieval / "qrels").mkdir()
    text = (ours / "cranfield/qrels/test.tsv").read_text()
    lines = [line.split("\t") for line in text.splitlines()]
    rows = [
        {"query-id": query, "corpus-id": document, "score": int(score)}
        for query, document, score in lines[1:]
    ]
    write_jsonl(retrieval / "qrels/test.jsonl", rows)
    configs = [("default", "test", "qrels/test.jsonl"), ("corpus", "corpus", "corpus.jsonl"),
               ("queries", "queries", "queries.jsonl")]  # fmt: skip
    write_card(retrieval, configs)
    reranking = folder / "AskUbuntuDupQuestions"
    shutil.copytree(retrieval, reranking)
    others = [row["_id"] for row in read(retrieval / "corpus.jsonl")][-NUM_DOCUMENTS:]
    candidates: dict[str, list[str]] = {}
    for query, document, _ in lines[1:]:
        candidates.setdefault(query, []).append(document)
    ranked = ({"query-id": key, "corpus-ids": [*ids, *others]} for key, ids in candidates.items())
    write_jsonl(reranking / "ranked.jsonl", [*ranked])
    write_card(reranking, [*configs, ("top_ranked", "test", "ranked.jsonl")])
    texts = [{"text": f"{row['sentence1']} {n}", "label": n % 3} for n, row in enumerate(sentences)]
    for split, some in (("train", texts[:30]), ("test", texts[30:])):
        (folder / "Banking77Classification.v2").mkdir(exist_ok=True)
        write_jsonl(folder / f"Banking77Classification.v2/{split}.jsonl", some)
    return folder


def write_card(folder: Path, configs: list[tuple[str, str, str]]) -> None:
    card = [
        f"- config_name: {name}\n  data_files:\n  - split: {split}\n    path: {path}"
        for name, split, path in configs
    ]
    (folder / "README.md").write_text("---\nconfigs:\n" + "\n".join(card) + "\n---\n")


def run(model, copies, out, tasks=("STS15", "SciFact")):
    return run_mteb(model, tasks, out, data=copies, max_seqlen=MAX_SEQLEN, quiet=True)


def test_our_judges_give_the_numbers_of_mteb(minilm, ours, copies, tmp_path):
    theirs = {row["task"]: row for row in run(minilm, copies, tmp_path / "scores").table()}
    settings = {
        "protocol": {"max_seqlen": MAX_SEQLEN, "retrieval_corpus": "full"},
        "root": tmp_path / "runs",
        "quiet": True,
    }
    sts = evaluate(minilm, f"sts:{ours / 'sts.jsonl'}", **settings).results[0].test
    zs = evaluate(minilm, f"zs:{ours / 'cranfield'}", **settings).results[0].test
    for name, metric, own in (("STS15", "spearman", sts), ("SciFact", "ndcg_at_10", zs)):
        [run_of] = evaluate(minilm, f"mteb:{name}", copies=copies, **settings).results
        # Queries are in another order, so sums of floats differ in the last digits.
        assert run_of.test == pytest.approx(own, rel=1e-12), name
        assert run_of.test[metric] > 0
    first = {**settings, "protocol": {**settings["protocol"], "pooling": "first"}}
    [other] = evaluate(minilm, "mteb:STS15", copies=copies, **first).results
    assert other.test["spearman"] != sts["spearman"]
    assert 100 * sts["spearman"] == pytest.approx(theirs["STS15"]["score"], abs=0.01)
    assert 100 * zs["ndcg_at_10"] == pytest.approx(theirs["SciFact"]["score"], abs=0.01)
    assert theirs["STS15"]["num_examples"] == NUM_PAIRS
    assert theirs["SciFact"]["num_examples"] == NUM_QUERIES
    assert theirs["SciFact"]["score"] > 20  # of a model that retrieves


@pytest.mark.filterwarnings("ignore:The fill_missing parameter:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension`:FutureWarning")
def test_the_packed_encoder_gives_what_sentence_transformers_gives_to_mteb(
    minilm, copies, tmp_path
):
    import mteb
    from sentence_transformers import SentenceTransformer

    def theirs(model: str, name: str) -> float:
        loaded = SentenceTransformer(model, device="cpu")
        loaded.max_seq_length = MAX_SEQLEN
        task = mteb_task(name, copies)
        load_mteb(task)  # else mteb may find other copies in the cache of datasets
        found = mteb.evaluate(loaded, task, cache=None, co2_tracker=False, show_progress_bar=False)
        return found.task_results[0].get_score()

    [ours] = run(minilm, copies, tmp_path, ["STS15"]).scores
    assert ours.score == pytest.approx(theirs(minilm, "STS15"), abs=1e-4)
    # Documents get no prompt, not the default one. Vectors that are not of length 1 differ.
    prompts = {"query": "the weather: ", "STS": "a recipe for bread: "}
    prompted = {"prompts": prompts, "default_prompt_name": "STS"}
    scores = []
    for number, settings in enumerate(({}, prompted, {"similarity_fn_name": "dot"})):
        model = link_model(Path(minilm), tmp_path / f"model{number}", modules=2, **settings)
        [ours] = run(model, copies, tmp_path, ["SciFact"]).scores
        assert ours.score == pytest.approx(theirs(str(model), "SciFact"), abs=1e-4)
        scores.append(ours.score)
    assert len(set(scores)) == len(scores)
    change = {"similarity_fn_name": "manhattan"}
    model = link_model(Path(minilm), tmp_path / "manhattan", modules=2, **change)
    with pytest.raises(ModelError, match="compared by 'manhattan'; only cosine and dot"):
        run(model, copies, tmp_path, ["SciFact"])


def test_a_changed_copy_has_its_own_queries(copies, tmp_path):
    shutil.copytree(copies / "scifact", tmp_path / "scifact")
    queries = tmp_path / "scifact/queries.jsonl"
    for count in (NUM_QUERIES, 3):
        queries.write_text("".join(queries.read_text().splitlines(keepends=True)[:count]))
        task = mteb_task("SciFact", tmp_path)
        # What git and downloads note beside the data is none of it.
        (tmp_path / "scifact/.cache").mkdir(exist_ok=True)
        (tmp_path / "scifact/.cache/note.metadata").write_text(str(count))
        revision = mteb_task("SciFact", tmp_path).metadata.dataset["revision"]
        assert revision == task.metadata.dataset["revision"]
        load_mteb(task)
        assert len(task.dataset["default"]["test"]["queries"]) == count


@pytest.mark.filterwarnings("ignore:.* is ill-defined")  # of precision, with so few texts
def test_examples_of_a_type_have_the_scores_whose_mean_is_the_tasks(copies, tmp_path):
    names = ("AskUbuntuDupQuestions", "Banking77Classification.v2")
    model = write_model(tmp_path / "model", "bert")
    scores = run(model, copies, tmp_path, names).scores
    for score, number in zip(scores, (NUM_QUERIES, NUM_PAIRS - 30), strict=True):
        assert score.num_examples == number
        header, *rows = (score.folder / f"{score.task}.csv").read_text().splitlines()
        assert header == f"id,{score.metric}"
        mean = sum(float(row.partition(",")[2]) for row in rows) / number
        assert mean == pytest.approx(score.score, abs=1e-5)
        assert 0 < mean < 1
    found = {info.name: info.metric for info in analyze(tmp_path).scores.datasets}
    assert found == {
        "MTEB": "main_score", names[0]: "map_at_1000", names[1]: "accuracy"
    }  # fmt: skip


def test_languages_of_unequal_size_leave_no_examples(tmp_path, monkeypatch):
    """Their mean would not be the task's score, in which each language counts the same."""
    by_language = {"de": {"test": {"1": 0.0}}, "en": {"test": {"1": 1.0, "2": 1.0}}}
    predictions = tmp_path / "predictions.json"
    predictions.write_text(json.dumps(by_language))
    monkeypatch.setattr(benchmark, "_scores", lambda _task, data, _found: data)
    parts = [{"hf_subset": name, "main_score": score} for name, score in (("de", 0), ("en", 1))]
    result = SimpleNamespace(scores={"test": parts})
    task = SimpleNamespace(dataset=by_language)
    assert benchmark._examples(task, result, predictions) == {}
    by_language["de"]["test"]["2"] = 0.0
    assert list(benchmark._examples(task, result, predictions).values()) == [0, 0, 1, 1]


def test_two_models_in_folders_of_one_name_get_their_own_scores(copies, tmp_path, monkeypatch):
    for number, family in enumerate(("bert", "eurobert")):
        write_model(tmp_path / str(number) / "model", family)
    first, second = (
        run(tmp_path / str(number) / "model", copies, tmp_path / "scores").table()
        for number in range(2)
    )
    assert [row["score"] for row in first] != [row["score"] for row in second]
    analysis = analyze(tmp_path / "scores")
    assert len({row["model"] for row in analysis.table()}) == 2
    datasets = {row["dataset"] for row in analysis.table()}
    assert {"MTEB", "STS15", "SciFact"} <= datasets
    lines = "\n".join(analysis.compare().lines())
    assert f"{NUM_PAIRS} test examples" in lines
    assert f"{NUM_QUERIES} test examples" in lines

    # A finished task is not run again; with other data it is.
    def refuse(*_, **__):
        raise AssertionError("ran again")

    monkeypatch.setattr("mteb.evaluate", refuse)
    assert run(tmp_path / "0/model", copies, tmp_path / "scores").table() == first
    changed = tmp_path / "changed"
    shutil.copytree(copies, changed)
    write_jsonl(changed / "STS15/test.jsonl", read(copies / "STS15/test.jsonl")[1:])
    with pytest.raises(DataError, match="ran again"):
        run(tmp_path / "0/model", changed, tmp_path / "scores", ["STS15"])


def test_a_kill_at_any_file_leaves_a_run_that_is_done_again(copies, tmp_path, monkeypatch):
    model, out = write_model(tmp_path / "model", "bert"), tmp_path / "scores"
    changed = tmp_path / "changed"
    (changed / "STS15").mkdir(parents=True)
    write_jsonl(changed / "STS15/test.jsonl", read(copies / "STS15/test.jsonl")[1:])
    [first] = run(model, copies, out, ["STS15"]).scores  # of other data, into the same folder
    place = first.folder
    for name in ("model_meta.json", "STS15.csv", "STS15.json"):

        def killing(path: Path, text: str, name: str = name) -> None:
            if path.name == name:
                os.kill(os.getpid(), signal.SIGKILL)
            write_text(path, text)

        with monkeypatch.context() as patch:
            patch.setattr("biphasic.evaluation.benchmark.write_text", killing)
            if not (child := os.fork()):
                run(model, changed, out, ["STS15"])
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert {path.name for path in place.iterdir()} <= {"model_meta.json", "STS15.csv"}
    [again] = run(model, changed, out, ["STS15"]).scores
    [alone] = run(model, changed, tmp_path / "alone", ["STS15"]).scores
    assert (again.score, again.num_examples) == (alone.score, NUM_PAIRS - 1)
    files = {path.name: path.read_bytes() for path in place.glob("*.csv")}
    assert files == {"STS15.csv": (alone.folder / "STS15.csv").read_bytes()}


def test_a_full_disk_leaves_no_result_and_no_example_of_other_data(copies, tmp_path, monkeypatch):
    model, out = write_model(tmp_path / "model", "bert"), tmp_path / "scores"
    [whole] = run(model, copies, out, ["STS15"]).scores
    examples = (whole.folder / "STS15.csv").read_bytes()
    changed = tmp_path / "changed"
    (changed / "STS15").mkdir(parents=True)
    write_jsonl(changed / "STS15/test.jsonl", read(copies / "STS15/test.jsonl")[1:])

    def full(path: Path, text: str) -> None:
        if path.name == "STS15.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_text(path, text)

    with monkeypatch.context() as patch:
        patch.setattr("biphasic.evaluation.benchmark.write_text", full)
        with pytest.raises(OSError, match="No space left"):
            run(model, changed, out, ["STS15"])
    assert not (whole.folder / "STS15.json").exists()
    assert run(model, copies, out, ["STS15"]).scores == (whole,)
    assert (whole.folder / "STS15.csv").read_bytes() == examples


def test_a_plan_reads_no_task_from_the_hub(copies, tmp_path, monkeypatch):
    monkeypatch.setattr("mteb.abstasks.AbsTask.load_data", lambda _: pytest.fail("read"))
    monkeypatch.setattr("mteb.abstasks.AbsTaskRetrieval.load_data", lambda _: pytest.fail("read"))
    names = ("STS15", "SciFact")
    tasks = [{"name": name.lower(), "source": f"mteb:{name}"} for name in names]
    plan = resolve(
        Study(tiny_study({"name": "untrained"}, tasks=tasks), tmp_path / "runs"),
        missing="placeholder",
    ).plan
    assert [task.info.kind for task in plan.tasks] == ["sts", "zs"]
    assert "tasks: sts15, scifact, not built here yet" in plan.assumed
    for name, what in {
        "Banking77Classification.v2": "Classification by accuracy",
        "AskUbuntuDupQuestions": "Reranking by map_at_1000",
        "CQADupstackRetrieval": "several tasks",
    }.items():
        bad = tiny_study({"name": "untrained"}, tasks=[{"name": "b", "source": f"mteb:{name}"}])
        with pytest.raises(DataError, match=rf"{what}; .*'biphasic mteb'"):
            resolve(Study(bad, tmp_path / "runs"), missing="placeholder")


def test_what_is_missing_is_one_line(copies, tmp_path):
    model = write_model(tmp_path / "model", "bert")
    with pytest.raises(ConfigError, match=r"mteb:STS51'.*STS15"):
        run(model, copies, tmp_path, ["STS51"])
    with pytest.raises(DataError, match="no folder 'STS16' or 'sts16-sts'"):
        run(model, copies, tmp_path, ["STS16"])
    broken = tmp_path / "broken"
    (broken / "STS15").mkdir(parents=True)
    write_jsonl(broken / "STS15/test.jsonl", [{"sentence1": "a"}])
    with pytest.raises(DataError, match="STS15"):
        run(model, broken, tmp_path, ["STS15"])


def test_the_command_prints_scores(copies, tmp_path):
    model = write_model(tmp_path / "model", "bert")
    options = ["--task", "STS15", "--data", str(copies), "--out", str(tmp_path / "out"), "--quiet"]
    result = CliRunner().invoke(app, ["mteb", str(model), *options])
    assert result.exit_code == 0, result.output
    assert f", scores of {NUM_PAIRS} examples" in result.stdout
