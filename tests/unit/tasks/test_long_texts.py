"""Texts that are longer than a model reads: windows equal to those cut by hand, and refusals."""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import threading
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy.special import expit, softmax
from torch import nn
from transformers import AutoModel, AutoModelForTokenClassification

import biphasic
from biphasic.errors import ConfigError, DataError
from biphasic.export.hf import write_sentence_transformers
from biphasic.tasks.encoding import FinetunedModel, are_long
from biphasic.tasks.kinds.tagging import TagLearner, Words
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import HeadRecord
from tiny_use import read_jsonl, tiny_tokenizer, write_head, write_jsonl, write_model, write_task

TOKENIZER = tiny_tokenizer()
MAX_SEQLEN, OVERLAP = 64, 8  # of the models here
LONG = " ".join(f"the cat {'sat on ' * (n % 3)}the mat" for n in range(40))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("encoder") / "eurobert", "eurobert")


@pytest.fixture
def finetuned(encoder, tmp_path):
    """Write a model with a random head: `finetuned("sc", fields=("text",))`."""

    def write(kind, **details):
        folder = shutil.copytree(encoder, tmp_path / f"{kind}{len(details)}")
        write_head(folder, kind, **details)
        return folder

    return write


@pytest.fixture(scope="module")
def tagger(encoder, tmp_path_factory):
    """A model that has learned that Paris and Anna are entities, in sentences of some words."""
    place = tmp_path_factory.mktemp("tagger")
    task = write_task(place / "tiny-tc", "tc", {"train": 96, "validation": 24, "test": 24})
    protocol = {"max_epochs": 8, "batch_size": 16, "max_seqlen": MAX_SEQLEN}
    return biphasic.finetune(
        encoder, f"tc:{task}", place / "out", learning_rates=[3e-3], seeds=[0], extend=0,
        protocol={**protocol, "window_overlap": OVERLAP}, root=place / "root", quiet=True,
    ).folder  # fmt: skip


def by_hand(ids, *, capacity=MAX_SEQLEN - 2, overlap=OVERLAP):
    """Return the start and end of the windows that cover a text."""
    borders, start = [], 0
    while True:
        borders.append((start, min(start + capacity, len(ids))))
        if start + capacity >= len(ids):
            return borders
        start += capacity - overlap


def framed(ids):
    return [TOKENIZER.bos_id, *ids, TOKENIZER.eos_id]


def states(folder, sequence):
    """Return the last states of a sequence, by transformers alone."""
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.tensor([sequence])).last_hidden_state[0]


class Numbered(nn.Module):
    """Stands for encoder and head: each token has the number of the window that it is in."""

    def batches(self, sequences):
        for number in reversed(range(len(sequences))):
            found = torch.zeros(len(sequences[number]), len(sequences))
            found[:, number] = 1
            yield np.array([number]), found, np.array([[0, len(found)]])

    def forward(self, states):
        return states


WORDS = st.sampled_from(["the", "cat", "mat", "q", "qzxv", "dogqq", "zq" * 9, "xyq" * 14])


@settings(max_examples=150, deadline=None)
@given(
    words=st.lists(WORDS, min_size=1, max_size=60),
    max_seqlen=st.integers(8, 40),
    overlap=st.integers(0, 50),
)
def test_every_word_is_read_where_it_has_most_context(words, max_seqlen, overlap):
    ids, offsets = TOKENIZER.encode_offsets(" ".join(words))
    capacity = max_seqlen - 2
    windows = by_hand(ids, capacity=capacity, overlap=min(overlap, capacity // 2))
    record = HeadRecord.model_construct(labels=("O", *(f"B-{n}" for n in range(1, len(windows)))))
    protocol, model = FinetuneProtocol(max_seqlen=max_seqlen, window_overlap=overlap), Numbered()
    finetuned = FinetunedModel(record, protocol, TOKENIZER, model, model)
    starts = tuple(range(len(words)))
    [row], cut = TagLearner.predict(finetuned, [Words(tuple(words), starts, None)])
    assert cut == [False]
    place = 0
    for word, tag in zip(words, row["tags"], strict=True):
        # A token may begin with the space before its word.
        tokens = [n for n, (a, b) in enumerate(offsets) if b > place and a < place + len(word)]
        context = [
            min(tokens[0] - start, end - 1 - tokens[-1]) if start <= tokens[0] < end else -np.inf
            for start, end in windows
        ]
        number = 0 if tag == "O" else int(tag[2:])
        assert number == int(np.argmax(context)), (word, context)
        place += len(word) + 1


def test_entities_at_the_end_of_three_thousand_words(one_thread, tagger, tmp_path):
    rng = np.random.default_rng(0)
    words = rng.choice(["the", "sat", "on", "mat", "and", "ran", "to", "with"], 3000).tolist()
    expected = {700: "Paris", 2997: "Anna", 2999: "Paris"}
    for place, name in expected.items():
        words[place] = name
    text = " ".join(words)
    [row] = biphasic.predict(tagger, [text]).rows
    found = {text[: e["start"]].count(" "): e["text"] for e in row["entities"]}
    assert (found, row["truncated"]) == (expected, False)
    [row] = biphasic.predict(tagger, [{"tokens": words}]).rows
    assert {e["start"]: e["text"] for e in row["entities"]} == expected
    cut = biphasic.predict(tagger, [text], long_texts="truncate")
    assert (cut.rows[0]["entities"], cut.rows[0]["truncated"]) == ([], True)
    assert cut.notes == (f"truncated: 1 of 1, longer than {MAX_SEQLEN} tokens",)


def test_tags_are_those_of_windows_cut_by_hand(one_thread, tagger):
    words = f"Anna {LONG} Paris {LONG} Anna Paris zqxv Anna".split()
    ids, offsets = TOKENIZER.encode_offsets(" ".join(words))
    windows = by_hand(ids)
    model = AutoModelForTokenClassification.from_pretrained(tagger).eval()
    logits = np.empty((len(ids), model.config.num_labels))
    # The middle of what two windows share is where the later one has more context.
    borders = [0, *(end - OVERLAP // 2 for _, end in windows[:-1]), len(ids)]
    for (start, end), (first, last) in zip(windows, pairwise(borders), strict=True):
        with torch.no_grad():
            found = model(torch.tensor([framed(ids[start:end])])).logits[0, 1:-1].numpy()
        logits[first:last] = found[first - start : last - start]
    word_starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
    at = [next(n for n, (_, b) in enumerate(offsets) if b > start) for start in word_starts]
    shares = softmax(logits[at], axis=1)
    [row] = biphasic.predict(tagger, [{"tokens": words}]).rows
    assert row["tags"] == [model.config.id2label[n] for n in shares.argmax(1).tolist()]
    assert len(row["entities"]) >= 5
    for entity in row["entities"]:
        covered = slice(entity["start"], entity["end"])
        assert entity["score"] == pytest.approx(shares.max(1)[covered].mean(), abs=1e-4)


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("kind", ["sc", "ml", "sr"])
def test_answers_are_those_of_windows_cut_by_hand(one_thread, finetuned, kind, how):
    folder = finetuned(kind, **({"mean": 3.0, "deviation": 2.0} if kind == "sr" else {}))
    texts = ["the cat", LONG, f"Anna {LONG}"]
    head = load_file(folder / "head.safetensors")
    expected = []
    for text in texts:
        ids = TOKENIZER.encode(text)
        vectors = [states(folder, framed(ids[a:b])).mean(0) for a, b in by_hand(ids)]
        outputs = torch.stack(vectors) @ head["weight"].T + head["bias"]
        expected.append(outputs.mean(0) if how == "mean" else outputs.max(0).values)
    outputs = torch.stack(expected).double().numpy()
    found = biphasic.predict(folder, texts, long_texts=how)
    assert not any(row["truncated"] for row in found.rows)
    if kind == "sr":
        scores = [row["score"] for row in found.rows]
        np.testing.assert_allclose(scores, 3 + 2 * outputs[:, 0], atol=1e-5)
        return
    shares = [list(row["probabilities"].values()) for row in found.rows]
    np.testing.assert_allclose(
        shares, softmax(outputs, axis=1) if kind == "sc" else expit(outputs), atol=1e-6
    )
    if kind == "sc":
        names = ("cat", "dog")
        assert [row["label"] for row in found.rows] == [names[n] for n in outputs.argmax(1)]


@pytest.mark.parametrize("kind", ["sc", "ml", "sr", "tc"])
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_files_of_texts_that_fit_are_the_same_to_the_byte(
    one_thread, finetuned, tmp_path, kind, suffix
):
    folder, texts = finetuned(kind), ["the cat sat", "Anna ran to Paris", "q" * 62, ""]
    ways = (None, "truncate") if kind == "tc" else (None, "truncate", "mean", "max")
    for how in ways:
        biphasic.predict(folder, texts, tmp_path / f"{how}.{suffix}", long_texts=how)
    files = {(tmp_path / f"{how}.{suffix}").read_bytes() for how in ways}
    assert len(files) == 1
    assert b"rue" not in files.pop()  # no text is truncated


def test_columns_are_the_same_however_texts_are_read(one_thread, cli, finetuned, tmp_path):
    folder = finetuned("sc")
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": "the cat"}, {"text": LONG}])
    columns = ["id", "label", "score", "probabilities.cat", "probabilities.dog", "truncated"]
    for how, cut in (("mean", "False"), ("max", "False"), ("truncate", "True")):
        out = tmp_path / f"{how}.csv"
        code, _, err = cli("predict", folder, source, "--out", out, "--long-texts", how)
        assert (code, "truncated: 1 of 2" in err) == (0, cut == "True")
        with out.open(newline="") as stream:
            rows = [*csv.DictReader(stream)]
        assert list(rows[0]) == columns
        assert [row["truncated"] for row in rows] == ["False", cut]
        found = biphasic.load(folder).predict(source, long_texts=how)
        assert [str(row["score"]) for row in found.rows] == [row["score"] for row in rows]


QUESTION = {"question": "who " * 9, "context": "the cat sat"}
PAIR = {"text_a": LONG, "text_b": "the cat"}
REFUSED = {
    "no way is given": (
        "sc", {}, [{"text": "a"}, {"text": LONG}, {"text": LONG}], None,
        r"list:2: longer than the 64 tokens that the model reads \(2 of 3 are\); "
        "--long-texts mean or max reads windows of it, and truncate reads its beginning",
    ),
    "labels": ("ml", {}, [{"text": LONG}], None, "list:1: longer than the 64 tokens"),
    "numbers": ("sr", {}, [{"text": LONG}], None, "list:1: longer than the 64 tokens"),
    "a question": (
        "qa", {}, [QUESTION], None,
        r"list:1: the question is longer than the 8 tokens .* shorten it, or .* --long-texts trunc",
    ),
    "a pair": (
        "sc", {"fields": ("text_a", "text_b")}, [PAIR], None,
        "list:1: longer .* shorten it, or read its beginning with --long-texts truncate",
    ),
    "windows of a pair": (
        "sc", {"fields": ("text_a", "text_b")}, [PAIR], "mean",
        r"--long-texts mean: no window has all that the model reads \(text_a, text_b\); give trun",
    ),
    "windows of a text with words around it": (
        "sc", {"fields": ("text",), "template": "See: {text} Mood:"}, [{"text": LONG}], "max",
        r"--long-texts max: no window has all that the model reads \(See: {text} Mood:\); give t",
    ),
    "one answer for tags": (
        "tc", {}, [{"text": LONG}], "max",
        "--long-texts max: a token classification model reads all windows without it; give trunc",
    ),
    "one answer for spans": ("qa", {}, [QUESTION], "mean", "--long-texts mean: a question answ"),
    "another word": ("sc", {}, [{"text": "a"}], "median", "unknown value 'median'; give mean, max"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(one_thread, finetuned, tmp_path, case):
    kind, details, rows, how, message = REFUSED[case]
    folder = finetuned(kind, **details)
    with pytest.raises((DataError, ConfigError), match=message):
        biphasic.predict(folder, rows, tmp_path / "o.jsonl", long_texts=how)
    assert not (tmp_path / "o.jsonl").exists()
    if how is None:
        cut = biphasic.predict(folder, rows, tmp_path / "o.jsonl", long_texts="truncate")
        assert cut.notes[0].startswith("truncated: ")


def test_long_texts_of_a_pipe_are_refused_when_they_come(one_thread, finetuned, encoder, tmp_path):
    folder = finetuned("sc")
    for verb, suffix in ((biphasic.predict, "jsonl"), (biphasic.encode, "npy")):
        pipe, out = tmp_path / f"{suffix}.txt", tmp_path / f"o.{suffix}"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=(f"the cat\n{LONG}\n",))
        writer.start()
        with pytest.raises(DataError, match=r"txt:2: longer than the 64 tokens that the model rea"):
            verb(folder if verb is biphasic.predict else encoder, pipe, out)
        writer.join()
        assert not out.exists()


def test_vectors_are_the_mean_of_windows_cut_by_hand(one_thread, encoder, tmp_path):
    texts, prefix = ["the cat", LONG], "Query: "
    first, ids = TOKENIZER.encode(prefix), TOKENIZER.encode(LONG)
    capacity = MAX_SEQLEN - 2 - len(first)
    windows = by_hand(ids, capacity=capacity, overlap=capacity // 2)  # 64 is more than half
    assert len(windows) > 3
    expected = np.stack(
        [
            states(encoder, framed(TOKENIZER.encode(prefix + texts[0]))).mean(0).numpy(),
            np.mean([states(encoder, framed([*first, *ids[a:b]])).mean(0) for a, b in windows], 0),
        ]
    )
    choices = {"prefix": prefix, "long_texts": "mean"}
    found = biphasic.encode(encoder, texts, **choices)
    np.testing.assert_allclose(found.vectors, expected, atol=1e-6)
    assert found.notes == ()
    assert np.array_equal(found.vectors, biphasic.load(encoder).encode(texts, **choices))
    unit = biphasic.encode(encoder, texts, normalize=True, **choices)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(unit.vectors, expected / lengths, atol=1e-6)


def test_vectors_of_long_texts_are_asked_for(one_thread, encoder, tmp_path):
    texts = ["the cat", LONG]
    message = (
        r"list:2: longer than the 64 tokens .*\(1 of 2 are\); --long-texts mean reads windows of "
        "it, and truncate reads its beginning"
    )
    for encode in (biphasic.load(encoder).encode, partial(biphasic.encode, encoder)):
        with pytest.raises(DataError, match=message):
            encode(texts)
        with pytest.raises(ConfigError, match="long_texts: unknown value 'max'; give mean or"):
            encode(texts, long_texts="max")
    cut = biphasic.encode(encoder, texts, long_texts="truncate")
    assert cut.notes == ("truncated: 1 of 2, longer than 64 tokens",)
    # A limit of one's own is there to cut texts.
    shorter = biphasic.encode(encoder, texts, max_seqlen=32)
    assert shorter.notes == ("truncated: 1 of 2, longer than 32 tokens",)
    assert biphasic.encode(encoder, texts, max_seqlen=32, long_texts="mean").notes == ()
    with pytest.raises(ConfigError, match="the 7 tokens before each text leave no room for it"):
        biphasic.encode(encoder, texts, max_seqlen=8, prefix="the " * 6, long_texts="mean")


def test_a_sentence_model_reads_long_texts_by_windows_of_its_limit(one_thread, encoder, tmp_path):
    folder = shutil.copytree(encoder, tmp_path / "sentences")
    write_sentence_transformers(folder, hidden_size=32, max_seqlen=24)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    for side, part in (("right", "beginning"), ("left", "end")):
        file.write_text(json.dumps({**settings, "truncation_side": side}))
        with pytest.raises(
            DataError, match=f"longer than the 24 tokens .* truncate reads its {part}"
        ):
            biphasic.encode(folder, [LONG])
    assert np.isfinite(biphasic.encode(folder, [LONG], long_texts="mean").vectors).all()


def test_only_texts_with_more_bytes_than_room_are_tokenised_to_find_long_ones():
    given = []

    def encode(texts):
        given.extend(texts)
        return TOKENIZER.encode_many(texts)

    texts = ["q" * 9, "the cat sat", "é" * 5, "", "q" * 10, "zq" * 9]
    assert are_long(texts, encode, room=9) == [False, False, True, False, True, True]
    assert given == ["the cat sat", "é" * 5, "q" * 10, "zq" * 9]


def test_a_text_that_its_tokenizer_lengthens_is_refused_too(one_thread, finetuned):
    folder, texts = finetuned("sc"), ["the cat", "\ufdfa" * 10]  # NFKC makes 18 characters of each
    rules = json.loads((folder / "tokenizer.json").read_text())
    changed = json.dumps({**rules, "normalizer": {"type": "NFKC"}})
    (folder / "tokenizer.json").write_text(changed)
    for verb in (biphasic.predict, biphasic.encode):
        with pytest.raises(DataError, match="list:2: longer than the 64 tokens"):
            verb(folder, texts)


@pytest.mark.slow
def test_one_text_of_200_000_words_takes_little_memory(one_thread, tagger, tmp_path):
    text = " ".join(["the cat sat on the mat with Anna"] * 25_000)
    short = write_jsonl(tmp_path / "short.jsonl", [{"text": text[:20_000]}])
    long = write_jsonl(tmp_path / "long.jsonl", [{"text": text}])
    model = biphasic.load(tagger)
    model.predict(short)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model.predict(long, tmp_path / "o.jsonl")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # in KiB
    assert grown < 300 * 1024
    [row] = read_jsonl(tmp_path / "o.jsonl")
    assert len(row["entities"]) == 25_000
