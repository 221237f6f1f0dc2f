"""`biphasic corpus`: what it prints, and how options become settings."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest
from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

from biphasic import encode, export_model
from biphasic.api import tokenizer as api
from biphasic.data.building.config import CorpusConfig
from biphasic.data.corpus import Corpus
from biphasic.data.tokens.tokenizer import train_tokenizer, write_tokenizer
from biphasic.errors import ConfigError

COMMAND = ["corpus"]


@pytest.fixture
def text(tmp_path, documents):
    """Two files of documents."""
    for name, pairs in (("one", documents[:30]), ("two", documents[30:])):
        lines = (json.dumps({"id": key, "body": text, "license": "CC0-1.0"}) for key, text in pairs)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def build(run, text, tokenizer):
    write_tokenizer(tokenizer, text / "given")

    def make(name, *options):
        code, out, err = run(
            "build", text / f"{name}.jsonl", "--out", text / name, "--column", "body",
            "--tokenizer", text / "given", "--heldout-fraction", "0.2", "--workers", "1", *options,
        )  # fmt: skip
        assert code == 0, err
        return out, err

    return make


def test_build_prints_its_result(text, build):
    out, err = build("one")
    train, heldout = Corpus(text / "one/train"), Corpus(text / "one/heldout")
    lines = out.splitlines()
    assert lines[0] == f"train: {len(train)} documents, {train.num_tokens:,} tokens"
    assert lines[1] == f"heldout: {len(heldout)} documents, {heldout.num_tokens:,} tokens"
    assert re.match(r"[\d.]+ kB tokenised in ", lines[2])
    assert "B/s" in lines[2]
    assert "tokens/s" in lines[2]
    assert lines[3:] == [f"corpus: {text / 'one'}"]
    assert err.splitlines() == [
        "mask token <|mask|> (id 3): the tokenizer declares <|mask|> as its mask token",
        "tokenising",
        "assembling the corpora",
        f"warning: documents held out: {len(heldout)}. Held-out losses will be unreliable; "
        "add more text, or raise heldout_fraction (--heldout-fraction, or in a corpus file or "
        "'corpus' of a study; docs/corpora.md)",
    ]
    assert build("one") == (
        "\n".join([*lines[:2], "already built; nothing to do", lines[3], ""]),
        "",
    )


def test_inspect_shows_both_splits(run, text, build):
    build("one")
    code, out, err = run("inspect", text / "one", "--max-seqlen", "64", "--samples", "1")
    assert (code, err) == (0, "")
    train, heldout = Corpus(text / "one/train"), Corpus(text / "one/heldout")
    assert f"train: {len(train)} documents, {train.num_tokens:,} tokens" in out
    assert f"heldout: {len(heldout)} documents" in out
    assert "rows of 64: " in out
    assert "exact duplicates: 0" in out
    assert f"CC0-1.0: {len(train)} documents" in out
    assert f"source one.jsonl: {len(train)} documents" in out
    assert "#####" in out
    assert "document 0 (" in out
    assert "WARNING" not in out
    # One corpus of the two, and its tokenizer is beside it.
    code, alone, _ = run("inspect", text / "one/heldout")
    assert "train:" not in alone
    assert "document 0 (" in alone


def test_verify_lists_intact_parts_and_damage(run, text, build):
    build("one")
    code, out, _ = run("verify", text / "one")
    assert code == 0
    assert [line.partition(":")[0] for line in out.splitlines()] == ["train", "heldout"]
    assert out.count(": intact\n") == 2
    path = text / "one/heldout/tokens-00000.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    code, out, err = run("verify", text / "one")
    assert code == 2
    [line] = err.splitlines()
    assert line.startswith(f"error: {path}: damaged")
    assert "delete the folder" in line


def test_verify_reads_the_tokenizer_too(run, text, build):
    build("one")
    (text / "one/tokenizer/tokenizer.json").unlink()
    code, _, err = run("verify", text / "one")
    assert code == 2
    assert "tokenizer.json: missing" in err


def test_inspect_warns_of_another_tokenizer(run, text, build, documents):
    build("one")
    shutil.rmtree(text / "one/tokenizer")
    other = train_tokenizer([text for _, text in documents], vocab_size=300)
    write_tokenizer(other, text / "one/tokenizer")
    code, out, _ = run("inspect", text / "one")
    assert code == 0
    assert out.count("built with another tokenizer") == 2
    assert "document 0" not in out


def test_build_prints_skipped_documents(run, tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"number {number}")
    (tmp_path / "empty.txt").write_text(" ")
    (tmp_path / "again.txt").write_text("number 7")
    (tmp_path / "cover.png").write_text("?")
    out_folder = tmp_path.parent / f"{tmp_path.name}-corpus"
    code, out, err = run(
        "build", tmp_path, "--out", out_folder, "--heldout-fraction", "0.3",
        "--vocab-size", "300", "--workers", "1", "--deduplicate",
    )  # fmt: skip
    assert code == 0, err
    assert f"{tmp_path.name}: documents skipped: 1 duplicate, 1 empty\n" in out
    assert f"{tmp_path.name}: 1 files skipped" in out


def test_an_unfinished_build_is_not_whole(run, text, build):
    build("one")
    (text / "one/built.json").unlink()
    code, _, err = run("inspect", text / "one")
    assert (code, "WARNING: unfinished (no built.json)" in err) == (0, True)
    code, out, err = run("verify", text / "one")
    assert (code, out) == (2, "")
    assert "one: no finished corpus" in err
    code, out, _ = run("verify", text / "one/train")
    assert (code, out.count(": intact")) == (0, 1)


def test_verify_of_no_corpus(run, tmp_path):
    code, _, err = run("verify", tmp_path / "none")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{tmp_path / 'none'}: no such folder" in err
    # One's own text is never called a damaged corpus.
    (tmp_path / "train").mkdir()
    (tmp_path / "train/a.txt").write_text("mine")
    for arguments in (["verify"], ["inspect"], ["merge", "--out", tmp_path / "out"]):
        code, _, err = run(*arguments, tmp_path)
        assert code == 2
        assert f"{tmp_path}: no corpus; give a folder made by 'biphasic corpus build'" in err


def test_merge_puts_builds_and_corpora_together(run, text, build):
    build("one")
    build("two")
    code, out, err = run("merge", text / "one", text / "two", "--out", text / "both")
    assert code == 0, err
    train = Corpus(text / "both/train")
    assert len(train) == len(Corpus(text / "one/train")) + len(Corpus(text / "two/train"))
    assert out.splitlines()[0] == f"train: {len(train)} documents, {train.num_tokens:,} tokens"
    assert run("verify", text / "both")[0] == 0
    code, _, err = run("merge", text / "one", text / "two/train", "--out", text / "none")
    assert (code, "give either built folders or single corpora" in err) == (2, True)
    merged = run("merge", text / "one/train", text / "two/heldout", "--out", text / "odd")
    assert merged[0] == 0
    assert len(Corpus(text / "odd")) == len(Corpus(text / "one/train")) + len(
        Corpus(text / "two/heldout")
    )


@pytest.fixture
def asked(run, monkeypatch):
    """Return the settings that `corpus build` builds with, or its error."""
    configs: list[CorpusConfig] = []

    def stop(config, *_, **__):
        configs.append(config)
        raise ConfigError("not built")

    def ask(*arguments):
        configs.clear()
        code, _, err = run("build", *arguments, "--out", "out")
        assert code == 2
        return configs[0] if configs else err

    monkeypatch.setattr("biphasic.data.building.build.build_corpus", stop)
    return ask


def test_options_go_before_the_spec(tmp_path, asked):
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "sources:\n- {source: a.jsonl, column: body, share: 1}\n- {source: b.jsonl, share: 1}\n"
        "max_tokens: 10\nmin_characters: 5\nvocab_size: 400\ndeduplicate: true\n"
    )
    plain = asked("--spec", spec)
    assert [source.source for source in plain.sources] == [
        str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")
    ]
    assert [source.column for source in plain.sources] == ["body", "text"]
    changed = asked("--spec", spec, "--max-tokens", 20, "--share", 3, "--share", 1)
    assert (changed.max_tokens, changed.min_characters) == (20, 5)
    assert [source.share for source in changed.sources] == [3, 1]
    assert asked("--spec", spec, "--tokenizer", "a/b").tokenizer == "a/b"
    assert "not both" in asked("--spec", spec, "--tokenizer", "a/b", "--vocab-size", 500)
    assert not asked("--spec", spec, "--no-deduplicate").deduplicate
    other = asked("c.jsonl", "--spec", spec, "--column", "content")
    assert [(source.source, source.column) for source in other.sources] == [("c.jsonl", "content")]


def test_shares_and_columns_need_sources(asked):
    assert "--share: 1 given for 2 sources" in asked("a", "b", "--share", 1)
    assert "--column: give the sources" in asked("--column", "x")
    assert "--column: b.TXT is one document" in asked("a.jsonl", "b.TXT", "--column", "x")
    assert "corpus build: max_tokens: " in asked("a", "--max-tokens=-1")


def test_build_refuses_a_json_key_that_is_repeated(run, text, tokenizer):
    write_tokenizer(tokenizer, text / "given")
    with (text / "one.jsonl").open("a") as file:
        file.write('\n{"id": "x", "body": "some words", "body": "others"}')
    code, _, err = run(
        "build", text / "one.jsonl", "--out", text / "one", "--column", "body",
        "--tokenizer", text / "given", "--workers", "1",
    )  # fmt: skip
    assert code == 2
    assert "one.jsonl:31" in err


def test_build_says_that_documents_hold_nul(text, build):
    with (text / "one.jsonl").open("a") as file:
        file.write('\n{"id": "x", "body": "some\\u0000words"}')
    line = "warning: one.jsonl: documents with NUL characters: 1. They are kept"
    assert line in "".join(build("one"))
    assert line in "".join(build("one"))  # already built


def test_build_refuses_an_edited_corpus(text, run, tokenizer):
    write_tokenizer(tokenizer, text / "given")
    command = (
        "build", text / "one.jsonl", "--out", text / "one", "--column", "body",
        "--tokenizer", text / "given", "--heldout-fraction", "0.2", "--workers", "1",
    )  # fmt: skip
    assert run(*command)[0] == 0
    shard = max((text / "one").rglob("*.bin"), key=lambda path: path.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    code, _, err = run(*command)
    assert code != 0
    assert shard.name in err


def test_build_refuses_an_edited_tokenizer(text, run, tokenizer):
    write_tokenizer(tokenizer, text / "given")
    file = text / "given" / "tokenizer.json"
    file.write_text(file.read_text() + "\n")
    code, _, err = run(
        "build", text / "one.jsonl", "--out", text / "one", "--column", "body",
        "--tokenizer", text / "given", "--heldout-fraction", "0.2", "--workers", "1",
    )  # fmt: skip
    assert code != 0
    assert "tokenizer.json" in err


SENTENCE = "the farmer counted every sheep twice before the night came down over his hills"
WORDS = SENTENCE.split()
CHINESE = "农夫在夜幕降临之前把每只羊都数了两遍然后回到山下的家里"


@pytest.fixture
def judged(tmp_path):
    """Return a task file of one test example, and the text around it that a corpus adds."""
    texts = tmp_path / "texts"
    texts.mkdir()

    def make(test):
        rows = {"train": "other words", "validation": "more words", "test": test}
        for split, text in rows.items():
            lines = (json.dumps({"text": text, "label": label}) + "\n" for label in "ab")
            (texts / f"{split}.jsonl").write_text("".join(lines))
        (tmp_path / "task.yaml").write_text("kind: sc\nname: sheep\nfolder: texts\n")
        return tmp_path / "task.yaml"

    return make


@pytest.mark.parametrize(
    ("test", "held", "is_left_out"),
    [
        (SENTENCE, SENTENCE, True),
        (SENTENCE, SENTENCE.upper().replace("SHEEP", "SH\u00adEEP"), True),
        (SENTENCE, " ".join(WORDS[:10]), False),  # 3 of 7 runs
        (SENTENCE, " ".join(WORDS[:11]), True),  # 4 of 7 runs
        (CHINESE, CHINESE[4:], True),
        ("a very good film", "a very good film", False),  # short, so compared whole
    ],
)
def test_documents_that_hold_a_text_of_a_task_are_left_out(
    run, text, tokenizer, judged, test, held, is_left_out
):
    write_tokenizer(tokenizer, text / "given")
    rows = [json.loads(line) for line in (text / "one.jsonl").read_text().splitlines()]
    rows.append({"id": "held", "body": f"{rows[0]['body']}\n\n{held} {rows[1]['body']}"})
    rows.append({"id": "short", "body": "A very good film!"})
    (text / "more.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (text / "spec.yaml").write_text(
        "sources: [{source: more.jsonl, column: body}]\ntokenizer: given\n"
        f"heldout_fraction: 0.2\nagainst: [{judged(test).name}]\n"
    )
    options = ["--spec", text / "spec.yaml", "--root", text, "--workers", "1"]
    code, out, err = run("build", *options, "--out", text / "built")
    assert code == 0, err
    names = {
        json.loads(name)
        for split in ("train", "heldout")
        for name in Corpus(text / "built" / split).names()
    }
    left_out = {"held"} if is_left_out else {"short"} if test == "a very good film" else set()
    assert {row["id"] for row in rows} - names == left_out
    record = json.loads((text / "built" / "built.json").read_text())
    counts = record["sources"]["more.jsonl"]["left_out"]
    assert counts["in_evaluation_task"] == len(left_out)
    for said in (out, run("inspect", text / "built")[2]):
        assert ("documents skipped: 1 in evaluation task" in said) == bool(left_out)
    assert run("build", *options, "--out", text / "built")[1].count("already built") == 1
    # The task decides what the corpus is.
    judged("a test of other words than those that were here before this")
    code, _, err = run("build", *options, "--out", text / "built")
    assert code == 2
    assert "other sources or settings" in err


def test_against_as_an_option_and_for_the_tokenizer(run, text, judged):
    held = " ".join(f"{word}zq" for word in WORDS)
    lines = (text / "one.jsonl").read_text() + "\n" + json.dumps({"id": "held", "body": held})
    (text / "more.jsonl").write_text(lines)
    task = judged(held)
    options = ["--column", "body", "--root", text, "--workers", "1", "--vocab-size", "400"]
    options += ["--heldout-fraction", "0.2"]
    hashes = {}
    for name, more in (("one", ()), ("more", ("--against", task))):
        code, _, err = run("build", text / f"{name}.jsonl", "--out", text / name, *options, *more)
        assert code == 0, err
        hashes[name] = [Corpus(text / name / part).content_hash for part in ("train", "heldout")]
    assert hashes["one"] == hashes["more"]  # also the ids, so the tokenizer
    one, more = (json.loads((text / name / "built.json").read_text()) for name in ("one", "more"))
    assert "against" not in one["origin"]
    assert more["origin"]["against"][0][0] == "sheep"


def test_a_task_that_is_not_there_is_refused_before_anything_is_written(run, text):
    code, _, err = run(
        "build", text / "one.jsonl", "--column", "body", "--out", text / "x", "--against", "sst3"
    )
    assert code == 2
    assert "unknown task 'sst3'" in err
    assert not (text / "x").exists()


@pytest.fixture
def mistral(text, tokenizer):
    """A folder with the pattern that Mistral published by mistake, in a vocabulary of its size."""
    rules = tokenizer.rules()
    size = tokenizer.vocab_size
    rules["model"]["vocab"] |= {f"unused word {number}": number for number in range(size, 100_100)}
    # A pattern as Llama 3 has it.
    wrong = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
    split = {"type": "Split", "pattern": {"Regex": wrong}, "behavior": "Isolated", "invert": False}
    byte_level = {**rules["pre_tokenizer"], "use_regex": False}
    rules["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    folder = text / "mistral"
    folder.mkdir()
    tokenizer.save(folder)
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    config = {"model_type": "mistral3", "transformers_version": "4.57.3"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_wrong_pattern_of_mistral_is_named_with_its_remedy(run, text, mistral):
    command = ("build", text / "one.jsonl", "--out", text / "one", "--column", "body",
               "--tokenizer", mistral, "--heldout-fraction", "0.2", "--workers", "1")  # fmt: skip
    code, _, err = run(*command)
    assert code == 0, err
    [warning] = [line for line in err.splitlines() if "fix_mistral_regex" in line]
    assert warning.startswith(
        f"warning: {mistral}: tokenizer.json splits words by the wrong pattern"
    )
    assert f"warning: {api.check(str(mistral)).warning}" == warning
    # As the warning says.
    AutoTokenizer.from_pretrained(str(mistral), fix_mistral_regex=True).save_pretrained(mistral)
    shutil.rmtree(text / "one")
    code, _, err = run(*command)
    assert code == 0, err
    assert "pattern" not in err


@pytest.mark.usefixtures("unchecked")
def test_exports_and_vectors_name_the_wrong_pattern_too(text, mistral, capsys):
    shape: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 100_100}
    layers: dict[str, Any] = {
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    }
    config = MistralConfig(**shape, **layers, head_dim=8, pad_token_id=2)
    MistralForCausalLM(config).save_pretrained(mistral)
    path = mistral / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"transformers_version": "4.57.3"}))
    wrong = f"warning: {mistral}: tokenizer.json splits words by the wrong pattern"
    assert encode(mistral, ["the cat"], quiet=True).notes[0].startswith(wrong)
    export_model(mistral, text / "exported")
    assert wrong in capsys.readouterr().err


@pytest.mark.parametrize("config", [{"model_type": "llama"}, {"transformers_version": "5.2.0"}])
def test_the_pattern_is_right_for_other_families_and_later_files(mistral, config):
    path = mistral / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    assert not api.check(str(mistral)).warning
