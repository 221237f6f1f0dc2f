"""Several corpora into one."""

import json
import os
import shutil

import pytest

import biphasic
from biphasic.data.building.build import build_corpus, is_built_from, read_record
from biphasic.data.building.built import (
    merge_builds,
    merge_corpora,
    verify_build,
    verify_corpus,
    verify_tokenizer,
)
from biphasic.data.building.config import CorpusConfig
from biphasic.data.corpus import Corpus
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer, write_tokenizer
from biphasic.errors import CheckpointError, ConfigError, DataError
from text_corpus import write_corpus


@pytest.fixture
def parts(tmp_path, documents, tokenizer):
    """The documents in two corpora of several shards."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, pairs in zip(folders, (documents[:35], documents[35:]), strict=True):
        write_corpus(folder, pairs, tokenizer, provenance={"from": folder.name}, block_bytes=2000)
    return folders


def test_a_merged_corpus_is_that_of_all_documents(tmp_path, parts, documents, corpus):
    merge_corpora(parts, tmp_path / "merged")
    merged = verify_corpus(tmp_path / "merged")
    assert merged.content_hash == corpus.content_hash
    assert [json.loads(name) for name in merged.names()] == [name for name, _ in documents]
    assert merged.details.vocab_size == 320
    noted = merged.details.provenance["merged"]
    assert [part["name"] for part in noted] == ["first", "second"]
    assert [part["provenance"] for part in noted] == [{"from": "first"}, {"from": "second"}]
    assert [part["content_hash"] for part in noted] == [Corpus(p).content_hash for p in parts]


def test_shards_are_linked_or_copied(tmp_path, monkeypatch, parts):
    merge_corpora(parts, tmp_path / "linked")
    assert (tmp_path / "linked/tokens-00000.bin").samefile(parts[0] / "tokens-00000.bin")

    def refuse(*_):
        raise OSError("another file system")

    monkeypatch.setattr(os, "link", refuse)
    merge_corpora(parts, tmp_path / "copied")
    assert not (tmp_path / "copied/tokens-00000.bin").samefile(parts[0] / "tokens-00000.bin")
    for name in ("corpus.json", "manifest.json", "tokens-00000.bin"):
        expected = (tmp_path / "linked" / name).read_bytes()
        assert (tmp_path / "copied" / name).read_bytes() == expected


def test_different_tokenizers_are_refused_by_name(tmp_path, parts, documents):
    other = train_tokenizer([text for _, text in documents], vocab_size=300)
    write_corpus(tmp_path / "other", documents, other, provenance={})
    with pytest.raises(DataError) as caught:
        merge_corpora([*parts, tmp_path / "other"], tmp_path / "merged")
    message = str(caught.value)
    assert message.startswith(
        f"{parts[0]} and {tmp_path / 'other'}: made with different tokenizers"
    )
    assert "same --tokenizer" in message
    assert not (tmp_path / "merged").exists()


def test_different_types_are_refused(tmp_path, parts, tokenizer):
    class Wide:
        sha256 = tokenizer.sha256
        vocab_size = 70_000
        rules, encode_many = tokenizer.rules, tokenizer.encode_many

    write_corpus(tmp_path / "wide", [("a", "rows")], Wide(), provenance={})
    with pytest.raises(DataError, match=r"different number types \(<u2 and <u4\)"):
        merge_corpora([parts[0], tmp_path / "wide"], tmp_path / "merged")


def test_the_same_again_is_done(tmp_path, parts):
    merge_corpora(parts, tmp_path / "merged")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").iterdir()}
    merge_corpora(parts, tmp_path / "merged")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "merged").iterdir()} == before
    with pytest.raises(ConfigError, match="merged: already exists"):
        merge_corpora(parts[::-1], tmp_path / "merged")


def test_damage_is_not_merged(tmp_path, parts):
    path = parts[1] / "tokens-00001.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=r"tokens-00001\.bin: wrong size"):
        merge_corpora(parts, tmp_path / "merged")


@pytest.fixture
def builds(tmp_path, documents, tokenizer):
    """Two builds with one tokenizer."""
    write_tokenizer(tokenizer, tmp_path / "given")
    folders = []
    for name, pairs in (("one", documents[:30]), ("two", documents[30:])):
        lines = (json.dumps({"id": key, "text": text}) for key, text in pairs)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        config = CorpusConfig.model_validate(
            {
                "sources": [str(tmp_path / f"{name}.jsonl")],
                "tokenizer": str(tmp_path / "given"),
                "heldout_fraction": 0.2,
            }
        )
        folders.append(tmp_path / name)
        build_corpus(config, folders[-1], num_workers=1, say=lambda _: None)
    return folders


def test_built_corpora_are_merged_split_by_split(tmp_path, builds):
    folders = merge_builds(builds, tmp_path / "merged", say=print)
    for split, folder in (("train", folders.train), ("heldout", folders.heldout)):
        parts = [Corpus(build / split) for build in builds]
        merged = verify_corpus(folder)
        verify_tokenizer(folders.tokenizer, merged)
        assert list(merged.names()) == [name for part in parts for name in part.names()]
        sources = biphasic.corpus.inspect(folder).summaries[split].sources
        assert [(name, counts["documents"]) for name, counts in sources] == [
            ("one.jsonl", len(parts[0])),
            ("two.jsonl", len(parts[1])),
        ]
    same = TextTokenizer.load(builds[0] / "tokenizer").sha256
    assert TextTokenizer.load(folders.tokenizer).sha256 == same
    record = read_record(tmp_path / "merged")
    parts = [read_record(build) for build in builds]
    assert record["origin"] == {"merged": [part["origin"] for part in parts]}
    assert record["sources"] == parts[0]["sources"] | parts[1]["sources"]
    # A corpus of a description is another one.
    with pytest.raises(ConfigError, match="made from other sources"):
        is_built_from(tmp_path / "merged", parts[0]["origin"])


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_held_out_text_that_another_part_may_train_on_is_reported(tmp_path, builds, fraction):
    settings = {"tokenizer": str(tmp_path / "given"), "heldout_fraction": fraction}
    again = [str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")]
    config = CorpusConfig.model_validate({"sources": again, **settings})
    build_corpus(config, tmp_path / "both", num_workers=1, say=lambda _: None)
    said = []
    merge_builds([*builds, tmp_path / "both"], tmp_path / "merged", say=said.append)
    train, heldout = (
        {json.loads(line).split(":")[-1] for line in Corpus(tmp_path / "merged" / split).names()}
        for split in ("train", "heldout")
    )
    is_leaked = bool(train & heldout)
    assert is_leaked == (fraction != 0.2)
    assert any("0.2, 0.5" in line for line in said) == is_leaked


def test_a_merge_that_is_refused_leaves_nothing(tmp_path, builds):
    shutil.rmtree(builds[1] / "heldout")
    shutil.copytree(builds[0] / "heldout", builds[1] / "heldout")
    with pytest.raises(DataError, match="the same documents"):
        merge_builds(builds, tmp_path / "merged", say=print)
    (builds[0] / "tokenizer/tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="tokenizer"):
        merge_builds(builds[:1], tmp_path / "merged", say=print)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("damaged", ["[]", "{}", '{"origin": {}, "sources": []}'])
def test_a_damaged_record_is_named(builds, damaged):
    (builds[0] / "built.json").write_text(damaged)
    with pytest.raises(DataError, match=r"built\.json: .* 'origin' and 'sources'"):
        verify_build(builds[0])


def test_no_corpora_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="folders: is empty"):
        biphasic.corpus.merge([], tmp_path / "merged")
