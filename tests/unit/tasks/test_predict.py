"""Predictions on people's files: columns, offsets, formats, and mistakes named before any work."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from seqeval.scheme import IOB2, Entities

from biphasic.errors import DataError
from biphasic.export.output import sign
from biphasic.tasks import use
from biphasic.tasks.inputs import check_output, new_file, open_input, open_source
from biphasic.tasks.kinds.tagging import entity_borders, split_words
from biphasic.tasks.use import predict_file
from mini_study import flip
from tiny_use import LABELS, read_jsonl, write_head, write_jsonl, write_model


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("encoder") / "eurobert", "eurobert")


@pytest.fixture
def finetuned(encoder, tmp_path):
    """Write a model with a random head: `finetuned("sc", fields=("text",))`."""

    def write(kind, **settings):
        folder = shutil.copytree(encoder, tmp_path / kind)
        write_head(folder, kind, **settings)
        return folder

    return write


def run(folder: Path, source: Path | str, out: Path, **settings):
    summary = predict_file(folder, open_input(str(source)), out, **settings)
    return summary, read_jsonl(out) if out.suffix == ".jsonl" else None


def test_formats_of_one_table_give_the_same(one_thread, finetuned, tmp_path):
    folder = finetuned("sc")
    texts = ["the cat sat", "a dog, ran", "on the mat"]
    write_jsonl(tmp_path / "t.jsonl", [{"id": n, "text": t} for n, t in enumerate(texts, 1)])
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "t.tsv").write_text("text\n" + "\n".join(texts) + "\n")
    with (tmp_path / "t.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["id", "text"], *enumerate(texts, 1)])
    pq.write_table(pa.table({"id": [1, 2, 3], "text": texts}), tmp_path / "t.parquet")
    found = {}
    for suffix in ("jsonl", "txt", "csv", "parquet", "tsv"):
        summary, found[suffix] = run(folder, tmp_path / f"t.{suffix}", tmp_path / f"{suffix}.jsonl")
        assert summary.num_examples == 3
    assert [row["id"] for row in found["jsonl"]] == ["1", "2", "3"]
    # A header takes a line, so rows without an id are counted from 2.
    assert [row["id"] for row in found["tsv"]] == ["2", "3", "4"]
    assert found["jsonl"] == found["txt"] == found["csv"] == found["parquet"]
    for row in found["jsonl"]:
        assert math.isclose(sum(row["probabilities"].values()), 1, abs_tol=1e-12)
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)


def test_outputs_are_the_same_as_json_csv_and_parquet(one_thread, finetuned, tmp_path):
    folder = finetuned("tc")
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": "Anna ran to Paris."}, {"text": ""}])
    _, rows = run(folder, source, tmp_path / "o.jsonl")
    run(folder, source, tmp_path / "o.csv")
    run(folder, source, tmp_path / "o.parquet")
    with (tmp_path / "o.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [json.loads(row["entities"]) for row in table] == [row["entities"] for row in rows]
    stored = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert [row["entities"] for row in stored] == [row["entities"] for row in rows]
    assert rows[1]["entities"] == []


def test_windows_of_a_long_input_do_not_change_its_order(
    one_thread, finetuned, tmp_path, monkeypatch
):
    folder = finetuned("sr", mean=100.0, deviation=10.0)
    texts = [" ".join(["cat"] * (1 + n % 7)) for n in range(20)]
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": text} for text in texts])
    _, whole = run(folder, source, tmp_path / "whole.jsonl")
    monkeypatch.setattr(use, "_WINDOW", 6)
    reports = []
    _, parts = run(folder, source, tmp_path / "parts.jsonl", report=lambda *at: reports.append(at))
    assert [row["id"] for row in parts] == [str(n) for n in range(1, 21)]
    assert np.allclose([r["score"] for r in whole], [r["score"] for r in parts], atol=1e-4)
    assert reports[-1] == (20, 20)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_entities_stand_where_their_offsets_say(one_thread, finetuned, tmp_path):
    folder = finetuned("tc")
    texts = ["Anna ran to Paris.", "the  dog\tsat (on) Zoë's naïve mat", "日本 and हिन्दी"]
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": text} for text in texts])
    _, rows = run(folder, source, tmp_path / "o.jsonl")
    entities = [(text, e) for text, row in zip(texts, rows, strict=True) for e in row["entities"]]
    assert entities
    for text, entity in entities:
        assert text[entity["start"] : entity["end"]] == entity["text"]
        assert entity["text"] == entity["text"].strip()
        assert 0 < entity["score"] <= 1


def test_words_of_a_text():
    cut = split_words("Zoë's (1.5)  naïve\nहिन्दी—x")
    assert cut.words == ("Zoë", "'", "s", "(", "1", ".", "5", ")", "naïve", "हिन्दी", "—", "x")
    for word, start in zip(cut.words, cut.starts, strict=True):
        assert "Zoë's (1.5)  naïve\nहिन्दी—x"[start : start + len(word)] == word
    assert split_words(" \n").words == ()


def test_given_tokens_get_tags_and_borders_in_words(one_thread, finetuned, tmp_path):
    folder = finetuned("tc")
    tokens = ["Anna", "ran", "to", "Paris", "with", "Anna"]
    given = [{"id": 7, "tokens": tokens}, {"id": None, "tokens": ["x"] * 90}]
    source = write_jsonl(tmp_path / "t.jsonl", given)
    summary, rows = run(folder, source, tmp_path / "o.jsonl", long_texts="truncate")
    assert [row["id"] for row in rows] == ["7", "2"]
    assert summary.num_cut == 1
    assert [len(row["tags"]) for row in rows] == [6, 90]
    assert rows[1]["tags"][62:] == ["O"] * 28  # beyond the limit of 64 tokens, with BOS and EOS
    for entity in rows[0]["entities"]:
        assert " ".join(tokens[entity["start"] : entity["end"]]) == entity["text"]
        assert rows[0]["tags"][entity["start"]] == f"B-{entity['type']}"


def test_entities_are_those_that_are_scored():
    rng = np.random.default_rng(0)
    for _ in range(300):
        tags = rng.choice(LABELS, int(rng.integers(1, 9))).tolist()
        [expected] = Entities([tags], IOB2).entities
        assert entity_borders(tags) == [(e.start, e.end - 1) for e in expected], tags


def test_answers_stand_in_their_context(one_thread, finetuned, tmp_path):
    rows = [
        {"q": "who ran", "c": "  the dog ran   to Paris with Anna and the cat"},
        {"q": "who sat", "c": "the mat " * 60},
        {"q": "who", "c": ""},
    ]
    source = write_jsonl(tmp_path / "t.jsonl", rows)
    for may_abstain in (False, True):
        folder = finetuned("qa", may_abstain=may_abstain, max_answer_tokens=5)
        out = tmp_path / f"{may_abstain}.jsonl"
        _, found = run(folder, source, out, columns=("q", "c"))
        shutil.rmtree(folder)
        assert all(("no_answer_score" in row) == may_abstain for row in found)
        for row, example in zip(found, rows, strict=True):
            if may_abstain and row["no_answer_score"] > row.get("score", -math.inf):
                assert row["answer"] == ""
            if row["answer"]:
                assert example["c"][row["start"] : row["end"]] == row["answer"]
            else:
                assert "start" not in row
        assert found[2]["answer"] == ""


def test_pairs_are_written_as_in_training(one_thread, finetuned, tmp_path):
    folder = finetuned("sc", fields=("text_a", "text_b"))
    pair = {"premise": "the cat", "hypothesis": "a dog"}
    _, usual = run(folder, write_jsonl(tmp_path / "a.jsonl", [pair]), tmp_path / "1.jsonl")
    other = write_jsonl(tmp_path / "b.jsonl", [{"x": "the cat", "y": "a dog"}])
    _, named = run(folder, other, tmp_path / "2.jsonl", columns=("x", "y"))
    shutil.rmtree(folder)
    folder = finetuned("sc", fields=("text_a", "text_b"), columns={"text_a": "x", "text_b": "y"})
    _, as_trained = run(folder, other, tmp_path / "7.jsonl")
    _, swapped = run(folder, other, tmp_path / "3.jsonl", columns=("y", "x"))
    shutil.rmtree(folder)
    folder = finetuned("sc")
    whole = write_jsonl(tmp_path / "c.jsonl", [{"text": "Sentence 1: the cat\nSentence 2: a dog"}])
    _, written = run(folder, whole, tmp_path / "4.jsonl")
    assert usual == named == as_trained == written != swapped
    shutil.rmtree(folder)
    folder = finetuned("sc", fields=("x", "y"), template="{x} / {y}")
    slash = write_jsonl(tmp_path / "d.jsonl", [{"text": "the cat / a dog"}])
    _, templated = run(folder, other, tmp_path / "5.jsonl")
    shutil.rmtree(folder)
    assert templated == run(finetuned("sc"), slash, tmp_path / "6.jsonl")[1]


def test_the_columns_of_training_go_before_those_with_the_names_of_fields(
    one_thread, finetuned, tmp_path
):
    folder = finetuned("sc", columns={"text": "review"})
    both = write_jsonl(tmp_path / "a.jsonl", [{"text": "a title", "review": "the cat sat"}])
    _, read = run(folder, both, tmp_path / "1.jsonl")
    _, named = run(folder, both, tmp_path / "2.jsonl", columns=("review",))
    _, other = run(folder, both, tmp_path / "3.jsonl", columns=("text",))
    assert read == named != other
    plain = write_jsonl(tmp_path / "b.jsonl", [{"text": "the cat sat"}])
    assert run(folder, plain, tmp_path / "4.jsonl")[1] == read


@pytest.mark.parametrize(
    ("kind", "rows", "columns", "message"),
    [
        ("sc", [{"review": "a"}], (), r"t.jsonl:1: no column 'text'; there are 'review'; name it"),
        ("sc", [{"text": "a"}, {"txt": "b"}], (), r"t.jsonl:2: no column 'text'"),
        ("sc", [{"review": "a"}], ("revew",), r"no column 'revew' \(did you mean 'review'"),
        ("sc", [{"text": "a"}, {"text": None}], (), "t.jsonl:2: 'text' must be a text, not None"),
        ("sc", [{"text": "a"}], ("a", "b"), r"--column: this model reads 1 \(text\), 2 given"),
        ("qa", [{"question": "a"}], (), "no column 'context'"),
        ("tc", [{"tokens": ["a", " "]}], (), "t.jsonl:1: token 1 is empty"),
        ("tc", [{"tokens": "a b"}], (), "'tokens' must be a list of texts"),
        ("sc", [], (), "empty; there is nothing to read"),
    ],
)
def test_mistakes_are_named_before_the_model_is_loaded(
    finetuned, tmp_path, kind, rows, columns, message
):
    folder = finetuned(kind)
    (folder / "model.safetensors").unlink()
    source = write_jsonl(tmp_path / "t.jsonl", rows)
    with pytest.raises(DataError, match=message):
        run(folder, source, tmp_path / "o.jsonl", columns=columns)
    assert not (tmp_path / "o.jsonl").exists()


def test_tokens_in_memory_that_utf8_cannot_hold_are_named(finetuned):
    tokens = [{"tokens": ["a"]}, {"tokens": ["a", "b\ud800"]}]
    with pytest.raises(DataError, match=r"list:2: 'tokens' .*surrogate \(character 1\)"):
        predict_file(finetuned("tc"), open_source(tokens, ("tokens",)), [])


@pytest.mark.parametrize("name", ["model.safetensors", "head.safetensors", "tokenizer.json"])
def test_a_file_with_a_flipped_byte_is_named_and_nothing_predicted(finetuned, tmp_path, name):
    folder = finetuned("sc")
    (folder / "README.md").write_text("# Mine\n")
    sign(folder, {"command": "finetune"})
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": "the cat sat"}])
    assert run(folder, source, tmp_path / "before.jsonl")[0].num_examples == 1
    flip(folder / name)
    with pytest.raises(DataError, match=rf"{name}: damaged \(SHA-256 .*README.md"):
        run(folder, source, tmp_path / "after.jsonl")
    assert not (tmp_path / "after.jsonl").exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_that_is_named_twice_is_refused(tmp_path, suffix):
    (tmp_path / "t.csv").write_text("text,text\na,b\n")
    table = pa.table([["a"], ["b"]], names=["text", "text"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match="the column 'text' is named twice"):
        next(open_input(str(tmp_path / f"t.{suffix}")).rows())


def test_a_named_pipe_is_read_once(one_thread, finetuned, tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    writer = threading.Thread(target=(tmp_path / "t.csv").write_text, args=("text\na\nb\n",))
    writer.start()
    summary, found = run(finetuned("sc"), tmp_path / "t.csv", tmp_path / "o.jsonl")
    writer.join()
    assert (summary.num_examples, [row["id"] for row in found]) == (2, ["2", "3"])


def test_parquet_from_a_pipe_is_not_called_damaged(tmp_path):
    os.mkfifo(pipe := tmp_path / "t.parquet")
    with (
        pipe.open("r+b", buffering=0),
        pytest.raises(DataError, match="cannot be read from a pipe"),
    ):
        next(open_input(str(pipe)).rows())


def test_places_are_checked(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        open_input(str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"give the model first"):
        open_input(str(tmp_path))
    (tmp_path / "t.docx").write_text("x")
    with pytest.raises(DataError, match="unknown suffix"):
        open_input(str(tmp_path / "t.docx"))
    assert open_input(str(tmp_path / "t.docx"), format="txt").format == "txt"
    with pytest.raises(DataError, match=r"format 'jsonlines' .*'jsonl'"):
        open_input("-", format="jsonlines")
    with pytest.raises(DataError, match=r"--out ends in \.jsonl"):
        check_output(tmp_path / "o.xlsx", (".jsonl",))
    with pytest.raises(DataError, match="already exists"):
        check_output(tmp_path / "t.docx", (".docx",))
    with pytest.raises(DataError, match="no such folder"):
        check_output(tmp_path / "none" / "o.jsonl", (".jsonl",))


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    def write(*, fails: bool) -> None:
        with new_file(tmp_path / "o") as partial:
            partial.write_text("ours")
            if fails:
                raise ValueError("stop")
            (tmp_path / "o").write_text("theirs")

    with pytest.raises(ValueError, match="stop"):
        write(fails=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="created by another process"):
        write(fails=False)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["theirs"]


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr("os.link", refuse)
    with new_file(tmp_path / "o") as partial:
        partial.write_text("ours")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["ours"]
    with (
        pytest.raises(DataError, match="created by another process"),
        new_file(tmp_path / "o") as partial,
    ):
        partial.write_text("again")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["ours"]


def test_a_row_has_the_score_of_its_label_and_says_whether_its_text_was_cut(
    one_thread, finetuned, tmp_path
):
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": "the cat"}, {"text": "the cat " * 90}])
    _, rows = run(finetuned("sc"), source, tmp_path / "o.jsonl", long_texts="truncate")
    assert [row["score"] for row in rows] == [max(row["probabilities"].values()) for row in rows]
    assert [row["truncated"] for row in rows] == [False, True]


@pytest.mark.parametrize("kind", ["sc", "ml"])
def test_a_csv_file_has_a_column_for_each_label(one_thread, finetuned, tmp_path, kind):
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": "the cat"}])
    _, [row] = run(finetuned(kind), source, tmp_path / "o.jsonl")
    run(tmp_path / kind, source, tmp_path / "o.csv")
    with (tmp_path / "o.csv").open(newline="") as stream:
        [cells] = csv.DictReader(stream)
    found = {name: float(cells[f"probabilities.{name}"]) for name in row["probabilities"]}
    assert found == row["probabilities"]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_the_best_labels_can_be_chosen(one_thread, finetuned, tmp_path, cli, suffix):
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": "the cat"}])
    out = tmp_path / f"o{suffix}"
    assert cli("predict", finetuned("sc"), source, "--out", out, "--top", "1")[0] == 0
    [row] = (row.value for row in open_input(str(out)).rows())
    nested = row.get("probabilities") or {n: v for n, v in row.items() if "." in n}
    assert [float(v) for v in nested.values() if v not in {None, ""}] == [float(row["score"])]
    code, _, error = cli(
        "predict", finetuned("sr"), source, "--out", tmp_path / "r.csv", "--top", "1"
    )
    assert (code, "gives labels no probabilities" in error) == (2, True)
