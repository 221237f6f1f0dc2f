"""Corpora from descriptions: the same bytes however they were made, and exact counts."""

import errno
import json
import os
import shutil
import sqlite3
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from biphasic.config import parse_config
from biphasic.data.building import build as module
from biphasic.data.building.build import (
    CorpusFolders,
    TextSample,
    build_corpus,
    sample_training_text,
)
from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.gather import BuildProgress, unique_names
from biphasic.data.building.selection import digest_of, split_of
from biphasic.data.corpus import Corpus
from biphasic.data.pairs import Pair, write_pairs
from biphasic.data.text.sources import read_documents
from biphasic.data.tokens.shards import ShardMaker
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.errors import ConfigError, DataError, LockedError
from biphasic.pydocs.documents import load_documents
from biphasic.store import MANIFEST
from mini_study import edit_json
from refusals import refusals, refused
from text_corpus import write_corpus

pytestmark = pytest.mark.slow

BLOCK_BYTES = 3000
TEXT = "the array of rows holds tokens and their weights unless axis is given where value"


def synthetic_documents(count, *, seed):
    """Return (id, text) pairs of 1 to 60 words."""
    draw = np.random.default_rng(seed)
    return [
        (f"{seed}/{number}", " ".join(draw.choice(TEXT.split(), length)))
        for number, length in enumerate(draw.integers(1, 61, count).tolist())
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two files of 120 and 60 documents, with licences here and there."""
    folder = tmp_path_factory.mktemp("files")
    for name, count, seed in (("big", 120, 11), ("small", 60, 12)):
        with (folder / f"{name}.jsonl").open("w") as lines:
            for number, (key, text) in enumerate(synthetic_documents(count, seed=seed)):
                record = {"id": key, "text": text}
                if number % 3 == 0:
                    record["license"] = "CC0-1.0"
                lines.write(json.dumps(record) + "\n")
    return folder


@pytest.fixture
def configure(tokenizer_folder):
    def make(*sources, **settings):
        raw = {"tokenizer": str(tokenizer_folder), "heldout_fraction": 0.1, **settings}
        raw["sources"] = [source if isinstance(source, dict) else str(source) for source in sources]
        return parse_config(CorpusConfig, raw, where="test")

    return make


def share(path, number):
    return {"source": str(path), "share": number}


def write_texts(path, texts):
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))


def build(config, folder, **options):
    options = {"num_workers": 1, "say": lambda _: None, "block_bytes": BLOCK_BYTES} | options
    return build_corpus(config, folder, **options)


def snapshot(folder):
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def names(corpus_folder):
    return [json.loads(name) for name in Corpus(corpus_folder).names()]


def record(folder):
    return json.loads((folder / "built.json").read_text())


def test_the_built_in_corpus_is_what_it_always_was(tmp_path):
    config = CorpusConfig(libraries=("cycler", "filelock"), vocab_size=400)
    folders = build(config, tmp_path / "built")
    documents = load_documents(config.libraries)
    tokenizer = train_tokenizer(
        (document.text for document in documents if document.split == "train"), vocab_size=400
    )
    assert TextTokenizer.load(folders.tokenizer).sha256 == tokenizer.sha256
    for folder, split in ((folders.train, "train"), (folders.heldout, "validation")):
        pairs = [(doc.id, doc.text) for doc in documents if doc.split == split]
        expected = write_corpus(tmp_path / split, pairs, tokenizer, provenance={})
        assert Corpus(folder).content_hash == expected.content_hash
        assert names(folder) == [name for name, _ in pairs]


def interrupted_build(monkeypatch, config, folder):
    """Start a build, and interrupt it after three shards."""
    made = []
    original = ShardMaker.make

    def stop_after_three(self, block, *, label):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(label)
        return original(self, block, label=label)

    with monkeypatch.context() as patch:
        patch.setattr(ShardMaker, "make", stop_after_three)
        with pytest.raises(KeyboardInterrupt):
            build(config, folder)


def stopped_build(monkeypatch, config, folder):
    """Interrupt a build as it writes its last record."""
    write = module.write_json

    def stop_at_the_end(path, value):
        if path.name == "built.json":
            raise KeyboardInterrupt
        write(path, value)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_json", stop_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            build(config, folder)


def test_neither_workers_nor_interruptions_change_a_byte(tmp_path, monkeypatch, files, configure):
    config = configure(
        files / "big.jsonl", files / "small.jsonl", max_tokens=9000, deduplicate=True
    )
    build(config, tmp_path / "one")
    build(config, tmp_path / "three", num_workers=3)
    assert snapshot(tmp_path / "three") == snapshot(tmp_path / "one")

    interrupted_build(monkeypatch, config, tmp_path / "resumed")
    seen = []
    build(config, tmp_path / "resumed", progress=seen.append)
    assert seen[-1].num_found == 3
    assert snapshot(tmp_path / "resumed") == snapshot(tmp_path / "one")


def test_a_finished_corpus_is_not_rebuilt(tmp_path, files, configure):
    config = configure(files / "big.jsonl")
    build(config, tmp_path / "c")
    before = snapshot(tmp_path / "c")
    seen = []
    folders = build(config, tmp_path / "c", progress=seen.append)
    assert folders == CorpusFolders.below(tmp_path / "c")
    assert not seen
    assert snapshot(tmp_path / "c") == before
    other = configure(files / "big.jsonl", max_documents=5)
    with pytest.raises(ConfigError, match="other sources or settings"):
        build(other, tmp_path / "c")


def test_a_file_that_is_skipped_makes_no_other_corpus(tmp_path, monkeypatch, files, configure):
    pages = tmp_path / "pages"
    pages.mkdir()
    shutil.copy(files / "big.jsonl", pages)
    config = configure(pages, tokenizer=None, vocab_size=300)
    stopped_build(monkeypatch, config, tmp_path / "c")
    (pages / ".DS_Store").write_text("x")
    said = []
    build(config, tmp_path / "c", say=said.append)
    assert not [line for line in said if "anew" in line or "training a tokenizer" in line]
    (pages / "notes.doc").write_text("x")
    before = snapshot(tmp_path / "c")
    build(config, tmp_path / "c")
    assert snapshot(tmp_path / "c") == before
    assert record(tmp_path / "c")["origin"]["sources"][0]["num_ignored"] == 1
    (pages / "more.txt").write_text("One more document.")
    with pytest.raises(ConfigError, match="other sources or settings"):
        build(config, tmp_path / "c")


@pytest.mark.parametrize("is_seen", [True, False])
def test_changed_input_is_never_mixed_with_what_was_made_before(
    tmp_path, monkeypatch, configure, is_seen
):
    pages = tmp_path / "pages.jsonl"
    config = configure(pages, **({"tokenizer": None, "vocab_size": 300} if is_seen else {}))
    write_texts(pages, [text for _, text in synthetic_documents(80, seed=3)])
    before = pages.stat()
    stopped_build(monkeypatch, config, tmp_path / "c")
    assert (tmp_path / "c/heldout/manifest.json").is_file()
    pages.write_text(pages.read_text().replace("array", "yarra"))
    if not is_seen:
        os.utime(pages, ns=(before.st_atime_ns, before.st_mtime_ns))
    said = []
    build(config, tmp_path / "c", say=said.append)
    anew = "c: sources or settings differ from the interrupted build's; starting anew"
    assert (anew in said) or not is_seen
    build(config, tmp_path / "fresh")
    assert snapshot(tmp_path / "c") == snapshot(tmp_path / "fresh")


def test_two_builds_in_one_folder(tmp_path, files, configure):
    config = configure(files / "big.jsonl")
    problems = []

    def build_again(_):
        with pytest.raises(LockedError, match=r"another process holds it") as caught:
            build(config, tmp_path / "c")
        problems.append(caught)

    build(config, tmp_path / "c", say=build_again)
    assert problems


def test_a_limit_by_tokens(tmp_path, files, configure):
    folders = build(configure(files / "big.jsonl"), tmp_path / "all")
    everything, order = Corpus(folders.train), [key for key, _ in synthetic_documents(120, seed=11)]
    totals = np.cumsum(everything.lengths)
    for max_tokens in (500, 2600):
        limited = build(
            configure(files / "big.jsonl", max_tokens=max_tokens), tmp_path / str(max_tokens)
        )
        part = Corpus(limited.train)
        assert part.lengths.tolist() == everything.lengths[totals <= max_tokens].tolist()
        # Held out is what was met on the way to the first training document that is left out.
        stop = order.index(names(folders.train)[len(part)])
        heldout = [name for name in names(folders.heldout) if order.index(name) < stop]
        assert names(limited.heldout) == heldout


def test_a_limit_by_tokens_limits_what_is_read_ahead(tmp_path, files, configure):
    seen = []
    config = configure(files / "big.jsonl", max_tokens=500)
    build(config, tmp_path / "c", num_workers=6, block_bytes=1000, progress=seen.append)
    assert seen[-1].text_bytes < 6500  # eight blocks, as many as can wait, have more than 8,000


@pytest.mark.parametrize("shares", [{}, {"share": {"temperature": 1.0}}])
def test_a_document_that_ends_a_source_is_recorded(tmp_path, configure, shares):
    lines = [f"the array of rows {number}" for number in range(60)]
    for name, texts in (("one", lines), ("two", [*lines[:20], "values " * 3000, *lines[20:]])):
        rows = [json.dumps({"text": f"{name} {text}"}) for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    paths = [tmp_path / f"{name}.jsonl" for name in ("one", "two")]
    config = configure(*paths, max_tokens=2500, heldout_fraction=0.3, **shares)
    folders = build(config, tmp_path / "built")
    found = record(tmp_path / "built")["ended_by"]
    assert found["two.jsonl"] > 2500 > Corpus(folders.train).num_tokens
    build(configure(paths[0], heldout_fraction=0.3), tmp_path / "whole")
    assert "ended_by" not in record(tmp_path / "whole")


@pytest.mark.parametrize("limit", [{"max_documents": 70}, {"max_tokens": 2500}])
def test_a_limit_goes_through_sources(tmp_path, files, configure, limit):
    sources = files / "small.jsonl", files / "big.jsonl"
    everything = Corpus(build(configure(*sources), tmp_path / "all").train)
    part = Corpus(build(configure(*sources, **limit), tmp_path / "part").train)
    if "max_tokens" in limit:
        assert len(part) == int((np.cumsum(everything.lengths) <= limit["max_tokens"]).sum())
    else:
        assert len(part) == limit["max_documents"]
    kept = list(everything.names())[: len(part)]
    assert list(part.names()) == kept
    counts = record(tmp_path / "part")["sources"]
    assert {name: each["train"]["documents"] for name, each in counts.items()} == Counter(
        json.loads(name).partition(":")[0] for name in kept
    )


def test_a_source_without_fitting_documents_ends_the_corpus(tmp_path, files, configure):
    everything = build(configure(files / "small.jsonl"), tmp_path / "small")
    tokens = Corpus(everything.train).num_tokens
    long = tmp_path / "long.jsonl"
    write_texts(long, ["rows " * 50])
    sources = files / "small.jsonl", long, files / "big.jsonl"
    folders = build(configure(*sources, max_tokens=tokens + 5, deduplicate=True), tmp_path / "c")
    assert Corpus(folders.train).num_tokens == tokens
    assert list(record(tmp_path / "c")["sources"]) == ["small.jsonl"]


def test_a_mixture_by_shares(tmp_path, files, configure):
    sources = [share(files / "big.jsonl", 1), share(files / "small.jsonl", 3)]
    config = configure(*sources, max_tokens=1200)
    folders = build(config, tmp_path / "c")
    counts = record(tmp_path / "c")["sources"]
    longest = int(Corpus(folders.train).lengths.max())
    for name, quota in (("big.jsonl", 300), ("small.jsonl", 900)):
        assert quota - longest < counts[name]["train"]["tokens"] <= quota
    assert Corpus(folders.train).num_tokens <= 1200


def test_the_largest_mixture(tmp_path, files, configure):
    sources = [share(files / "big.jsonl", 0.5), share(files / "small.jsonl", 0.5)]
    build(configure(*sources), tmp_path / "c")
    build(configure(files / "small.jsonl"), tmp_path / "small")
    counts = record(tmp_path / "c")["sources"]
    small = record(tmp_path / "small")["sources"]["small.jsonl"]
    # The smaller source is used up, the larger one gives as much.
    assert counts["small.jsonl"] == small
    longest = int(Corpus(tmp_path / "c/train").lengths.max())
    tokens = counts["big.jsonl"]["train"]["tokens"]
    assert small["train"]["tokens"] - longest < tokens <= small["train"]["tokens"]


@pytest.mark.parametrize("temperature", [0, 0.3, 0.7, 1])
@pytest.mark.parametrize("most", [None, 700])
def test_a_mixture_by_the_sizes_of_its_sources(tmp_path, files, configure, temperature, most):
    sources = [files / "big.jsonl", files / "small.jsonl"]
    sizes, longest = [], 0
    for number, source in enumerate(sources):
        build(configure(source), tmp_path / f"{number}")
        alone = Corpus(tmp_path / f"{number}/train")
        sizes.append(alone.num_tokens)
        longest = max(longest, int(alone.lengths.max()))
    settings = {"share": {"temperature": temperature}, "max_tokens": most}
    folders = build(configure(*sources, **settings), tmp_path / "c")
    counts = [source["train"] for source in record(tmp_path / "c")["sources"].values()]
    powers = [size**temperature for size in sizes]
    assert [count["share"] for count in counts] == pytest.approx(
        [power / sum(powers) for power in powers], abs=1e-6
    )
    # Without a limit, the smaller source is used up: no text is read twice in an epoch.
    total = most or sizes[1] * sum(powers) / powers[1]
    for count in counts:
        assert count["share"] * total - longest < count["tokens"] <= count["share"] * total + 1
    if temperature == 1 and most is None:
        assert [count["tokens"] for count in counts] == sizes
    given = [share(path, power) for path, power in zip(sources, powers, strict=True)]
    build(configure(*given, max_tokens=most), tmp_path / "same")
    assert Corpus(tmp_path / "same/train").content_hash == Corpus(folders.train).content_hash


def test_rows_of_a_language_are_a_source(tmp_path, configure):
    texts = [text for _, text in synthetic_documents(90, seed=6)]
    rows = [
        {"text": t, "language": "de" if n % 3 else "fi", "n": n, "is_clean": n < 9}
        for n, t in enumerate(texts)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "all.parquet")
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("de", "fi"):
        own = [row["text"] for row in rows if row["language"] == name]
        write_texts(tmp_path / f"{name}.jsonl", own)
    apart = configure(tmp_path / "de.jsonl", tmp_path / "fi.jsonl", share={"temperature": 0.5})
    expected = Corpus(build(apart, tmp_path / "apart").train).content_hash
    for file in (tmp_path / "all.parquet", tmp_path / "all.jsonl"):
        own = [{"source": str(file), "only": {"language": name}} for name in ("de", "fi")]
        made = build(configure(*own, share={"temperature": 0.5}), file.with_suffix(""))
        assert Corpus(made.train).content_hash == expected
        assert [*record(made.train.parent)["sources"]] == [f"{file.name}:de", f"{file.name}:fi"]
        shutil.rmtree(made.train.parent)
        [source] = configure({"source": str(file), "only": {"language": "de", "n": "1"}}).sources
        assert [document.text for document in read_documents(source)] == [texts[1]]
        [clean] = configure({"source": str(file), "only": {"is_clean": True, "n": 2}}).sources
        assert [document.text for document in read_documents(clean)] == [texts[2]]


def test_a_source_that_a_mixture_uses_up_is_used_to_its_end(tmp_path, configure):
    texts = [text for _, text in synthetic_documents(60, seed=4)]
    texts.sort(key=lambda text: split_of(digest_of(text), 0.1), reverse=True)  # held out last
    for name, part in (("small", texts), ("big", [text + " array" for text in texts * 3])):
        write_texts(tmp_path / f"{name}.jsonl", part)
    sources = [share(tmp_path / f"{name}.jsonl", 1) for name in ("small", "big")]
    build(configure(*sources), tmp_path / "c")
    counts = record(tmp_path / "c")["sources"]["small.jsonl"]
    assert counts["train"]["documents"] + counts["heldout"]["documents"] == 60


def test_a_source_too_small_for_its_share_reports_a_share_that_fits(tmp_path, files, configure):
    sources = [share(files / "big.jsonl", 1), share(files / "small.jsonl", 1)]
    build(configure(files / "small.jsonl"), tmp_path / "small")
    tokens = record(tmp_path / "small")["sources"]["small.jsonl"]["train"]["tokens"]
    with pytest.raises(DataError) as caught:
        build(configure(*sources, max_tokens=2 * tokens + 20), tmp_path / "c")
    message = str(caught.value)
    assert message == (
        f"small.jsonl: has {tokens:,} tokens, but its share of max_tokens is {tokens + 10:,}; "
        f"max_tokens {2 * tokens} would fit"
    )
    build(configure(*sources, max_tokens=2 * tokens), tmp_path / "c")
    counts = record(tmp_path / "c")["sources"]
    assert counts["small.jsonl"]["train"]["tokens"] == tokens


def test_what_is_read_ahead_counts_nowhere(tmp_path, configure):
    """The second source has the first one's text: what the first did not use is no duplicate."""
    documents = synthetic_documents(90, seed=5)
    for name in ("first", "second"):
        records = [{"id": key, "text": text} for key, text in documents]
        records[3::7] = [{"id": "", "text": " "}] * len(records[3::7])
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    sources = [share(tmp_path / "first.jsonl", 1), share(tmp_path / "second.jsonl", 1)]
    config = configure(*sources, max_tokens=1000, deduplicate=True)
    outcomes = []
    for number, (workers, block_bytes) in enumerate([(1, 500), (1, 10_000), (3, 500)]):
        folder = tmp_path / f"c{number}"
        build(config, folder, num_workers=workers, block_bytes=block_bytes)
        content = [Corpus(folder / split).content_hash for split in ("train", "heldout")]
        outcomes.append((content, record(folder)))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    counts = outcomes[0][1]["sources"]
    used = sum(counts["first.jsonl"][split]["documents"] for split in ("train", "heldout"))
    assert counts["second.jsonl"]["left_out"]["duplicate"] == used
    assert 0 < counts["first.jsonl"]["left_out"]["empty"] < len(documents[3::7])
    assert counts["second.jsonl"]["train"]["tokens"] > 400


@pytest.mark.parametrize("limit", [{}, {"max_documents": 50}])
def test_an_interrupted_build_counts_documents_with_nul_as_another(
    tmp_path, monkeypatch, configure, limit
):
    pairs = synthetic_documents(120, seed=5)
    texts = [f"{text}\0" * (1 + number % 3) for number, (_, text) in enumerate(pairs)]
    texts[::4] = [text.replace("\0", " ") for text in texts[::4]]
    write_texts(tmp_path / "a.jsonl", texts)
    config = configure(tmp_path / "a.jsonl", **limit)
    folders = build(config, tmp_path / "one")
    interrupted_build(monkeypatch, config, tmp_path / "resumed")
    build(config, tmp_path / "resumed")
    assert record(tmp_path / "resumed") == record(tmp_path / "one")
    kept = [
        texts[int(name.rsplit(":", 1)[1]) - 1]
        for folder in (folders.train, folders.heldout)
        for name in names(folder)
    ]
    counts = record(tmp_path / "one")["sources"]["a.jsonl"]
    assert counts["with_nul"] == sum("\0" in text for text in kept) > 20
    assert (len(kept) < 120) == bool(limit)


def test_shards_that_cannot_be_deleted_fail_the_build_and_the_next_one_deletes_them(
    tmp_path, monkeypatch, files, configure
):
    config, delete = configure(files / "big.jsonl"), shutil.rmtree

    def refuse(folder, **options):
        if folder.name == ".building":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))
        delete(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(OSError, match="Read-only file system"):
        build(config, tmp_path / "c")
    monkeypatch.undo()
    assert (tmp_path / "c/.building").is_dir()
    build(config, tmp_path / "c")
    assert not (tmp_path / "c/.building").exists()


def test_counts_by_source_reason_and_licence(tmp_path, configure, tokenizer):
    texts = ["", "ab", "the array of rows", "the array of rows", "x" * 200, "tokens and weights"]
    texts += ["copy unless axis"] * 2 + [text for _, text in synthetic_documents(40, seed=9)]
    lines = (
        json.dumps({"id": str(n), "text": text, "license": "MIT" if n % 2 else "CC0"})
        for n, text in enumerate(texts)
    )
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    config = configure(tmp_path / "a.jsonl", min_characters=3, max_characters=150, deduplicate=True)
    folders = build(config, tmp_path / "c")
    [counts] = record(tmp_path / "c")["sources"].values()
    too_long = sum(len(text) > 150 for text in texts)
    kept = {text: n for n, text in reversed(list(enumerate(texts))) if 3 <= len(text) <= 150}
    short = sum(1 <= len(text) < 3 for text in texts)
    assert counts["left_out"] == {
        "empty": 1,
        "too_short": short,
        "too_long": too_long,
        "duplicate": len(texts) - 1 - short - too_long - len(kept),
        "in_evaluation_task": 0,
    }
    assert counts["left_out"]["duplicate"] >= 2
    for split, folder in (("train", folders.train), ("heldout", folders.heldout)):
        corpus = Corpus(folder)
        split_texts = [texts[int(name)] for name in names(folder)]
        assert counts[split]["documents"] == len(corpus) == len(split_texts)
        assert counts[split]["tokens"] == corpus.num_tokens
        assert counts[split]["characters"] == sum(map(len, split_texts))
        assert counts[split]["licenses"] == {
            name: sum(int(number) % 2 == odd for number in names(folder))
            for name, odd in (("CC0", 0), ("MIT", 1))
            if any(int(number) % 2 == odd for number in names(folder))
        }
        assert corpus.details.provenance["by_source"]["a.jsonl"] == counts[split]
    total = counts["train"]["documents"] + counts["heldout"]["documents"]
    assert total == len(kept)


@pytest.mark.parametrize("limit", [{}, {"max_documents": 25}])
def test_a_document_without_any_token_counts_as_empty(tmp_path, configure, tokenizer_folder, limit):
    shutil.copytree(tokenizer_folder, tmp_path / "t", ignore=lambda *_: [MANIFEST])
    removing = {"type": "Replace", "pattern": {"String": "\u200b"}, "content": ""}
    edit_json(tmp_path / "t" / "tokenizer.json", normalizer=removing)
    texts = ["\u200b", *(text for _, text in synthetic_documents(40, seed=9)), "\u200b\u200b"]
    write_texts(tmp_path / "a.jsonl", texts)
    config = configure(tmp_path / "a.jsonl", tokenizer=str(tmp_path / "t"), **limit)
    folders = build(config, tmp_path / "c")
    [counts] = record(tmp_path / "c")["sources"].values()
    assert counts["left_out"]["empty"] == (1 if limit else 2)
    assert len(Corpus(folders.train)) == (
        25 if limit else len(texts) - 2 - len(names(folders.heldout))
    )


@pytest.mark.parametrize("trains", [{}, {"tokenizer": None}])
def test_a_corpus_without_training_documents_says_what_became_of_them(tmp_path, configure, trains):
    texts = [f"the array of rows {number}" for number in range(8)]
    heldout = [text for text in texts if split_of(digest_of(text), 0.5) == "heldout"]
    assert 0 < len(heldout) < 8
    write_texts(tmp_path / "a.jsonl", ["", "the", *heldout])
    config = configure(tmp_path / "a.jsonl", min_characters=4, heldout_fraction=0.5, **trains)
    reasons = f"1 empty, 1 too short, {len(heldout)} held out"
    with pytest.raises(DataError, match=rf"a\.jsonl: no training document \({reasons}\)"):
        build(config, tmp_path / "c")


def spoil(tokenizer_folder, folder, name):
    """Copy a tokenizer that declares an ordinary letter as a special token."""
    shutil.copytree(tokenizer_folder, folder, ignore=lambda *_: [MANIFEST])
    edit_json(folder / "tokenizer_config.json", **{name: "a"})
    return folder


def test_special_tokens_in_the_text_are_counted_and_reported(
    tmp_path, files, configure, tokenizer_folder
):
    spoilt = spoil(tokenizer_folder, tmp_path / "tokenizer", "eos_token")
    said = []
    config = configure(files / "big.jsonl", tokenizer=str(spoilt))
    folders = build(config, tmp_path / "c", say=said.append)
    eos_id = TextTokenizer.load(spoilt).eos_id
    tokens = [
        corpus.tokens(document, 0, int(length))
        for corpus in (Corpus(folders.train), Corpus(folders.heldout))
        for document, length in enumerate(corpus.lengths)
    ]
    count = int((np.concatenate(tokens) == eos_id).sum())
    assert count > 0
    assert record(tmp_path / "c")["special_in_text"] == {"a": count}
    assert said[-1].endswith(f"as text: a ({count:,} times)")


@pytest.mark.parametrize("kind", ["WordLevel", "Unigram"])
def test_text_that_the_tokenizer_has_no_token_for_is_counted_and_reported(
    tmp_path, files, configure, kind
):
    special = ["[UNK]", "<s>", "</s>", "<mask>"]
    known = [*special, *(word for word in TEXT.split() if word != "axis")]
    if kind == "WordLevel":
        vocabulary = {word: place for place, word in enumerate(known)}
        made = Tokenizer(models.WordLevel(vocabulary, unk_token=special[0]))
    else:
        made = Tokenizer(models.Unigram([(word, -1.0) for word in known], unk_id=0))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (folder := tmp_path / "tokenizer").mkdir()
    made.save(str(folder / "tokenizer.json"))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    said = []
    build(configure(files / "big.jsonl", tokenizer=str(folder)), tmp_path / "c", say=said.append)
    lines = (files / "big.jsonl").read_text().splitlines()
    words = " ".join(json.loads(line)["text"] for line in lines).split()
    lost = words.count("axis")
    assert record(tmp_path / "c")["special_in_text"] == {"[UNK]": lost}
    assert any(f"[UNK]: {lost:,} of " in line for line in said)
    assert not any("as text" in line for line in said)


REFUSED = {
    "a first document beyond the limit": (
        lambda f: ([f.long, f.big], {"max_tokens": 5}),
        DataError, "long.jsonl: its first document", "5",
    ),
    "a share below the first document": (
        lambda f: ([share(f.big, 1), share(f.small, 100_000)], {}),
        DataError, "big.jsonl: ", "give it a larger share",
    ),
    "a share below the first document of a limit": (
        lambda f: ([share(f.big, 1), share(f.small, 100_000)], {"max_tokens": 500}),
        DataError, "big.jsonl: ", "raise max_tokens",
    ),
    "nothing held out": (
        lambda f: ([f.one], {"heldout_fraction": 1e-9}), DataError, "no document is held out"
    ),
    "no text": (
        lambda f: ([f.empty], {"tokenizer": None}),
        DataError, "empty.txt: no training document (1 empty)",
    ),
    "a mask token in the text": (
        lambda f: ([f.big], {"tokenizer": f.spoilt}), DataError, "contains the mask token"
    ),
    "a source too small for its size": (
        lambda f: ([f.big, f.small], {"max_tokens": 10**6, "share": {"temperature": 0.5}}),
        DataError, "small.jsonl: ", "tokens, but its share of max_tokens is", "would fit",
    ),
    "a source too small for its share, before others": (
        lambda f: ([share(f.big, 1), share(f.small, 1)], {"max_tokens": 10**6}),
        DataError, "big.jsonl: ", "would fit, if later sources, not read yet, have enough",
    ),
    "no text to mix": (
        lambda f: ([f.big, f.empty], {"share": {"temperature": 1}}),
        DataError, "empty.txt: has no training document to mix",
    ),
    "a column that is not there": (
        lambda f: ([{"source": str(f.big), "only": {"lang": "de"}}], {}),
        DataError, "big.jsonl", "no column 'lang'", "license",
    ),
    "a value that no row has": (
        lambda f: ([{"source": str(f.big), "only": {"license": "none"}}], {}),
        DataError, "no column 'license'",
    ),
    "a column of a document": (
        lambda f: ([{"source": str(f.one), "column": "body"}], {}),
        DataError, "one.txt: one document, without columns; omit 'column'",
    ),
    "a column of pairs": (
        lambda f: ([{"source": str(f.pairs), "column": "body"}], {}),
        DataError, "texts of pairs have no columns; omit 'column'",
    ),
    "columns of a document": (
        lambda f: ([{"source": str(f.one), "only": {"language": "de"}}], {}),
        DataError, "one.txt: one document, without columns; omit 'only'",
    ),
    "a finished corpus": (lambda _: ([], {"folder": "c"}), ConfigError, "names a finished corpus"),
    "sources before the tokenizer": (
        lambda f: ([f.absent], {"tokenizer": "no/such"}), DataError, "absent.jsonl: no such file"
    ),
}  # fmt: skip


@refusals(REFUSED)
def test_refused(tmp_path, files, configure, tokenizer_folder, given, error, parts):
    place = SimpleNamespace(
        spoilt=str(spoil(tokenizer_folder, tmp_path / "spoilt", "mask_token")),
        **{name: files / f"{name}.jsonl" for name in ("big", "small", "absent")},
        **{name: tmp_path / f"{name}.txt" for name in ("one", "empty")},
        long=tmp_path / "long.jsonl",
        pairs=write_pairs(tmp_path / "pairs", [Pair("a", "b")], origin={}).folder,
    )
    place.one.write_text("the array of rows")
    place.empty.touch()
    write_texts(place.long, ["rows " * 50])
    sources, settings = given(place)
    config = CorpusConfig(folder=tmp_path) if "folder" in settings else None
    refused(error, parts, build, config or configure(*sources, **settings), tmp_path / "c")
    assert not (tmp_path / "c/built.json").exists()


@pytest.mark.parametrize(
    ("file", "content", "error", "message"),
    [
        (".", None, DataError, "is a file, not a folder"),
        ("../c", None, DataError, "is a file, not a folder"),
        ("train/mine.txt", "mine", ConfigError, "train: already exists, not from a build"),
        ("built.json", "[]", ConfigError, "holds a corpus made from other sources"),
        ("built.json", '{"origin": {"sources": [1]}}', DataError, "built.json: damaged"),
        (".building/begun.json", "", DataError, "begun.json: damaged"),
        (".building/begun.json", '{"sources": [1]}', DataError, "begun.json: damaged"),
    ],
)
def test_a_folder_that_is_no_corpus_is_left_as_it_is(
    tmp_path, files, configure, file, content, error, message
):
    folder = tmp_path / "c"
    path = folder / file
    if content is None:
        (tmp_path / "c").write_text("mine")
        folder = path if file == "." else folder / "below"
        path = tmp_path / "c"
    else:
        path.parent.mkdir(parents=True)
        path.write_text(content)
    refused(error, [message], build, configure(files / "big.jsonl"), folder)
    assert path.read_text() == ("mine" if content is None else content)


def test_a_corpus_is_not_built_into_its_source(tmp_path, configure):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("the array of rows")
    for source in (tmp_path / "texts", f"hf:{tmp_path / 'texts'}"):
        for folder in (tmp_path / "texts", tmp_path / "texts/.out"):
            with pytest.raises(ConfigError, match=r"inside the source .*texts; choose"):
                build(configure(source), folder)
    assert [file.name for file in (tmp_path / "texts").iterdir()] == ["a.txt"]


def test_a_source_that_gives_no_text_is_named(tmp_path, configure):
    rows = [{"text": f"the array of {number} rows", "language": "en"} for number in range(200)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [{"source": str(path), "only": {"language": code}} for code in ("ger", "en")]
    said: list[str] = []
    build(configure(*sources, heldout_fraction=0.1), tmp_path / "c", say=said.append)
    warned = [line for line in said if "no training document" in line]
    assert warned == ["warning: t.jsonl:ger: gives no training document; check its path and 'only'"]


@pytest.mark.parametrize("trains", [{}, {"tokenizer": None}])
def test_a_full_disk_for_the_index_of_texts_is_named(tmp_path, monkeypatch, configure, trains):
    def fill(*_):
        raise sqlite3.OperationalError("database or disk is full")

    write_texts(tmp_path / "t.jsonl", ["the array of rows"])
    monkeypatch.setattr("biphasic.data.building.selection.SeenDigests.add", fill)
    config = configure(tmp_path / "t.jsonl", deduplicate=True, **trains)
    with pytest.raises(OSError, match=r"No space left on device: '.*c/\.building'"):
        build(config, tmp_path / "c")


def test_all_sources_are_opened_before_one_is_tokenised(tmp_path, files, configure):
    said: list[str] = []
    sources = [files / "big.jsonl", {"source": str(files / "small.jsonl"), "column": "body"}]
    with pytest.raises(DataError, match=r"small\.jsonl:1: no column 'body'"):
        build(configure(*sources), tmp_path / "c", say=said.append)
    assert "tokenising" not in said


def test_workers_are_as_many_as_the_process_may_use(monkeypatch, all_cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8}, raising=False)
    assert all_cores() == 3


def test_names_of_sources_are_their_own():
    assert unique_names(["a", "b"]) == ["a", "b"]
    assert unique_names(["a", "a"]) == ["a#1", "a#2"]
    assert unique_names(["a", "a#1", "a", "a#1"]) == ["a#2", "a#1#1", "a#3", "a#1#2"]


def test_a_large_sample_is_bounded_spread_and_a_function_of_the_texts():
    texts = [f"{number} some text" for number in range(4000)]
    chosen = TextSample(10_000)
    chosen.extend(texts, max_bytes=10**6)
    sizes = [len(text) for text in chosen.texts()]
    assert 4000 < sum(sizes) <= 10_000
    places = [int(text.split()[0]) for text in chosen.texts()]
    assert places == sorted(places)
    assert 0.4 < np.mean(places) / 4000 < 0.6
    again = TextSample(10_000)
    again.extend(reversed(texts), max_bytes=10**6)
    assert set(again.texts()) == set(chosen.texts())


def test_sampling_does_not_depend_on_what_is_held_out():
    texts = [f"{number} some text" for number in range(2000)]
    training = [text for text in texts if split_of(digest_of(text), 0.5) == "train"]
    chosen = TextSample(4000)  # about a quarter of them
    chosen.extend(training, max_bytes=10**6)
    assert 2000 < sum(map(len, chosen.texts())) <= 4000


def test_shards_of_an_interrupted_build_have_no_rate():
    amounts = {"text_bytes": 4_000_000, "tokens": 10**6, "total_tokens": None}
    new = BuildProgress(**amounts, num_found=0, seconds=2)
    assert new.rates() == "4 MB tokenised in 2.0 s: 2 MB/s, 500,000 tokens/s"
    resumed = replace(new, num_found=3, seconds=0)
    assert resumed.rates() == "3 shards reused from an interrupted build"


def test_one_huge_document_does_not_push_out_all_others():
    texts = [f"{number} some text" for number in range(100)]
    # The lowest place of all, so that it stays however many others are left out.
    candidates = [f"{number} é" * 4000 for number in range(200)]
    huge = min(candidates, key=lambda text: digest_of(text)[8:])
    chosen = TextSample(1600)
    chosen.extend([*texts[:50], huge, *texts[50:]], max_bytes=10**6)
    kept = chosen.texts()
    assert sum(text in texts for text in kept) > 20
    [part] = [text for text in kept if text not in texts]
    assert huge.startswith(part)
    assert 98 <= len(part.encode()) <= 100


def test_only_the_beginning_of_a_source_is_considered():
    chosen = TextSample(10**6)
    chosen.extend(["aaaa", "bbbb", "cccc"], max_bytes=5)
    assert chosen.texts() == ["aaaa", "bbbb"]


def test_a_tokenizer_is_trained_on_training_text_alone(tmp_path, monkeypatch, files, configure):
    config = configure(files / "small.jsonl", tokenizer=None, vocab_size=300)
    folders = build(config, tmp_path / "c")
    by_name = dict(synthetic_documents(60, seed=12))
    expected = [by_name[name] for name in names(folders.train)]
    assert sample_training_text(config, tmp_path) == expected
    monkeypatch.setattr(module, "SAMPLE_BYTES", 2000)
    assert 0 < sum(map(len, sample_training_text(config, tmp_path))) <= 2000
