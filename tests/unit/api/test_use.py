"""Models in use from Python: what they give is what the commands write, and errors are ours."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from huggingface_hub import HfApi
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoModelForMaskedLM

import biphasic
from biphasic import evaluate
from biphasic.errors import CheckpointError, ConfigError, DataError, ModelError
from mini_study import flip
from tiny_use import read_jsonl, sentencepiece, tiny_tokenizer, write_jsonl, write_model

TEXTS = ["the cat sat on the mat", "", "the dog ran to Paris with Anna"]
PAIRS = [("the cat sat on the mat", "cat the on sat mat the"), ("the dog ran", "the dog dog")]


def test_predictions_are_those_of_the_command(one_thread, cli, finetuned, tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": text} for text in TEXTS])
    cli("predict", str(finetuned), str(source), "--out", str(tmp_path / "o.jsonl"))
    written = read_jsonl(tmp_path / "o.jsonl")
    model = biphasic.load(finetuned)
    for found in (
        biphasic.predict(finetuned, source),
        biphasic.predict(finetuned, TEXTS),
        biphasic.predict(finetuned, [{"text": text} for text in TEXTS]),
        model.predict(TEXTS),
        model.predict(str(source), tmp_path / "again.jsonl"),
    ):
        assert [dict(row) for row in found.table()] == written
        assert found.notes == ("empty: 1 of 3",)
        assert list(found.frame["label"]) == [row["label"] for row in written]
        assert found.num_examples == 3
    assert "<td>1</td>" in biphasic.predict(finetuned, TEXTS)._repr_html_()


def test_examples_of_two_texts_are_tuples(one_thread, encoder, finetuned):
    from tiny_use import write_head

    write_head(finetuned, "sc", fields=("text_a", "text_b"), template="{text_a} {text_b}")
    found = biphasic.predict(finetuned, [("the cat", "sat"), ("a dog", "ran")])
    assert found.num_examples == 2
    with pytest.raises(DataError, match=r"list:2: 1 texts, .*\(text_a, text_b\)"):
        biphasic.predict(finetuned, [("the cat", "sat"), "a dog"])
    with pytest.raises(DataError, match="no fine-tuned model here"):
        biphasic.predict(encoder, TEXTS)
    with pytest.raises(DataError, match="empty; there is nothing to read"):
        biphasic.predict(finetuned, [])


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_vectors_are_those_of_the_command(one_thread, cli, encoder, tmp_path, suffix):
    source, out = write_jsonl(tmp_path / "t.jsonl", [{"text": t} for t in TEXTS]), f"v{suffix}"
    cli("encode", str(encoder), str(source), "--out", str(tmp_path / out), "--normalize")
    here = biphasic.encode(encoder, TEXTS, normalize=True)
    there = biphasic.encode(encoder, source, tmp_path / f"again{suffix}", normalize=True)
    loaded = biphasic.load(encoder).encode(TEXTS, normalize=True)
    if suffix == ".npy":
        assert np.array_equal(np.load(tmp_path / out), here.vectors)
        assert isinstance(there.vectors, np.memmap)
    assert np.array_equal(here.vectors, there.vectors)
    assert np.array_equal(here.vectors, loaded)
    assert here.vectors.dtype == np.float32
    assert here.vectors.shape == (3, 32)
    assert here.ids == ("1", "2", "3")
    assert there.ids == (("0", "1", "2") if suffix == ".npy" else here.ids)
    assert here.frame.shape == (3, 33)
    assert "texts/s" in here._repr_html_()
    assert str(there).startswith(f"{tmp_path}/again")


def test_one_text_is_not_taken_for_its_letters(encoder):
    with pytest.raises(ConfigError, match="give a list"):
        biphasic.load(encoder).encode("the cat")
    with pytest.raises(DataError, match="list:2: must be a text, not nan"):
        biphasic.load(encoder).encode(["the cat", math.nan])
    with pytest.raises(DataError, match=r"list:1: .*surrogate \(character 1\)"):
        biphasic.load(encoder).encode(["a\ud800"])
    for missing in (math.nan, None, b"a dog"):
        with pytest.raises(DataError, match=f"list:2: 'text' must be a text, not {missing!r}"):
            biphasic.encode(encoder, ["the cat", missing])
    with pytest.raises(DataError, match=r"list:1: 'text' .*surrogate \(character 0\)"):
        biphasic.encode(encoder, ["\ud800"])


def test_a_plain_decoder_warns_that_it_never_read_both_ways(one_thread, tmp_path):
    model = biphasic.load(write_model(tmp_path / "llama", "llama"))
    with pytest.warns(UserWarning, match="decoder not trained for bidirectional") as found:
        model.encode(TEXTS)
    assert [warning.filename for warning in found] == [__file__]
    model.encode(TEXTS)  # once for a model


@pytest.mark.parametrize("make", [dict, pd.DataFrame])
def test_a_table_is_not_taken_for_the_names_of_its_columns(one_thread, encoder, make):
    table = make({"text": TEXTS})
    for encode in (biphasic.load(encoder).encode, lambda texts: biphasic.encode(encoder, texts)):
        with pytest.raises(DataError, match="not a list; give its texts"):
            encode(table)
        encode(list(table["text"]))
    rows = biphasic.encode(encoder, pd.DataFrame(table).to_dict("records"))
    assert rows.vectors.shape[0] == len(TEXTS)


@pytest.mark.parametrize("kind", ["encoder", "state", "finetuned"])
def test_every_kind_of_folder_encodes(one_thread, request, kind):
    model = biphasic.load(request.getfixturevalue(kind))
    vectors = model.encode(TEXTS, max_seqlen=8)
    assert vectors.shape[0] == 3
    assert np.isfinite(vectors).all()
    assert repr(model) == f"biphasic.load({str(model.folder)!r})"


def test_masks_are_filled_as_transformers_fills_them(one_thread, encoder):
    tokenizer = tiny_tokenizer()
    found = biphasic.load(encoder).fill_mask("the <|mask|> sat on the <|mask|>", top=3)
    ids = [tokenizer.bos_id, *tokenizer.encode("the"), tokenizer.mask_id]
    ids += [*tokenizer.encode(" sat on the"), tokenizer.mask_id, tokenizer.eos_id]
    with torch.inference_mode():
        model = AutoModelForMaskedLM.from_pretrained(encoder).eval()
        chances = model(torch.tensor([ids])).logits[0].softmax(-1)
    for place, candidates in zip(
        np.flatnonzero(np.array(ids) == tokenizer.mask_id), found.candidates, strict=True
    ):
        best = chances[place].topk(3)
        assert [token for token, _ in candidates] == [tokenizer.decode([i]) for i in best.indices]
        assert [chance for _, chance in candidates] == pytest.approx(best.values.tolist(), rel=1e-4)
    assert found.frame.columns.tolist() == ["mask", "token", "probability"]
    assert len(found.frame) == 6
    assert str(found).startswith("the <|mask|> sat on the <|mask|>\n  0  0.")


@pytest.mark.parametrize(
    "rules",
    [
        {"normalizer": normalizers.Prepend("▁")},
        {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="always")},
        {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first")},
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])},
        {"normalizer": normalizers.Strip(), "pre_tokenizer": pre_tokenizers.Metaspace()},
    ],
    ids=["prepend", "always", "first", "nested", "strip"],
)
def test_text_after_a_mask_is_read_as_in_training(one_thread, tmp_path, rules):
    tokenizer = sentencepiece(**rules)
    model = write_model(tmp_path, "eurobert", tokenizer)
    for text, masked in (("the big cat.", "the <mask> cat."), ("the big.", "the <mask>.")):
        ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        assert tokenizer.decode([ids[2]]).endswith("big")
        ids[2] = tokenizer.mask_id
        with torch.inference_mode():
            logits = AutoModelForMaskedLM.from_pretrained(model).eval()(torch.tensor([ids])).logits
        [[(_, chance)]] = biphasic.load(model).fill_mask(masked, top=1).candidates
        assert chance == pytest.approx(float(logits[0, 2].softmax(-1).max()), rel=1e-4)


def test_masks_are_refused_by_those_that_cannot_fill_them(one_thread, encoder, decoder):
    with pytest.raises(DataError, match=r"no mask in 'the cat'; write <\|mask\|>"):
        biphasic.load(encoder).fill_mask("the cat")
    with pytest.raises(DataError, match="at most 64"):
        biphasic.load(encoder).fill_mask("the <|mask|> " + "cat " * 80)
    with pytest.raises(DataError, match=r"text: .*surrogate \(character 13\)"):
        biphasic.load(encoder).fill_mask("the <|mask|> \ud800")
    for top in (0, 100_000):
        with pytest.raises(ConfigError, match=rf"top: {top}; give 1 to "):
            biphasic.load(encoder).fill_mask("the <|mask|>", top=top)
    with pytest.raises(ModelError, match="last trained to predict the next token"):
        biphasic.load(decoder).fill_mask("the <|mask|>")


def test_a_state_fills_masks_by_its_last_objective(one_thread, state):
    assert len(biphasic.load(state).fill_mask("the <|mask|>", top=2).candidates[0]) == 2


@pytest.mark.parametrize(("kind", "reading"), [("encoder", "mlm"), ("decoder", "clm")])
def test_pairs_score_as_evaluate_scores_them(one_thread, request, tmp_path, kind, reading):
    folder = request.getfixturevalue(kind)
    rows = [
        {"id": f"p{n}", "sentence_good": good, "sentence_bad": bad}
        for n, (good, bad) in enumerate(PAIRS)
    ]
    file = write_jsonl(tmp_path / "test.jsonl", rows)
    model = biphasic.load(folder)
    scores = model.score(PAIRS)
    expected = evaluate(folder, f"mp:{file}", root=tmp_path / "root")
    assert expected.results[0].test == pytest.approx({"accuracy": scores.accuracy, "ties": 0.0})
    assert (scores.reading, len(scores.rows)) == (reading, 2)
    assert scores.frame["correct"].mean() == scores.accuracy
    assert [row["good"] for row in model.score(rows).rows] == [row["good"] for row in scores.rows]
    assert [row["id"] for row in model.score(file).rows] == ["p0", "p1"]
    assert all(math.isfinite(row["bad"]) and row["bad"] < 0 for row in scores.rows)
    assert str(scores).endswith(f"on 2 pairs, by {reading}")


def test_a_headless_model_scores_nothing(one_thread, encoder, tmp_path):
    from transformers import AutoModel

    AutoModel.from_pretrained(encoder).save_pretrained(tmp_path / "body")
    tiny_tokenizer().save(tmp_path / "body")
    model = biphasic.load(tmp_path / "body")
    with pytest.raises(ModelError, match="body"):
        model.score(PAIRS)
    with pytest.raises(DataError, match="empty; there is nothing to score"):
        model.score([])


def test_an_encoder_is_pushed(one_thread, encoder, monkeypatch):
    sent = {}
    monkeypatch.setenv("HF_TOKEN", "token")
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: None)
    monkeypatch.setattr(HfApi, "upload_folder", lambda _, **options: sent.update(options))
    model = biphasic.load(encoder)
    listed = model.push("me/mine")
    assert (listed.address, sent) == (None, {})
    pushed = model.push("me/mine", go=True)
    assert pushed.address.endswith("/me/mine")
    assert (sent["repo_id"], sent["folder_path"]) == ("me/mine", encoder)
    assert list(pushed.frame["file"]) == sorted(sent["allow_patterns"])
    assert "model.safetensors" in str(listed)
    assert listed.notes == ("no README.md: users will not know what this is",)


def test_what_is_damaged_or_missing_is_not_opened(state, tmp_path):
    flip(state / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model.safetensors: damaged"):
        biphasic.load(state)
    with pytest.raises(DataError, match="no model here"):
        biphasic.load(tmp_path)
    with pytest.raises(ConfigError, match="precision"):
        biphasic.load(tmp_path, precision="int4")  # type: ignore[arg-type]


def test_hostile_texts_are_escaped(one_thread, encoder):
    text = "<script>alert(1)</script> <|mask|>"
    shown = biphasic.load(encoder).fill_mask(text)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert json.dumps("\x1b")[1:-1] in repr(biphasic.load(encoder).fill_mask("\x1b <|mask|>"))
