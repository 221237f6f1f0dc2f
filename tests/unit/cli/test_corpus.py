"""`biphasic corpus`: what it prints, and how options become settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

from biphasic import encode, export_model
from biphasic.api import tokenizer as api
from biphasic.data.building.config import CorpusConfig
from biphasic.data.corpus import Corpus
from biphasic.data.tokens.tokenizer import write_tokenizer
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
    spec.write_text("sources: [a.jsonl, b.jsonl]\nshare: {temperature: 0.5}\n")
    assert asked("c.jsonl", "--spec", spec).share is None
    assert asked("c.jsonl", "d.jsonl", "--spec", spec).share.temperature == 0.5
    assert asked("--spec", spec, "--share", 3, "--share", 1).share is None


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
    assert not api.check(str(mistral)).warning


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
