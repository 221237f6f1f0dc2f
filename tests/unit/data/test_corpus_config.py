"""Descriptions of corpora: defaults, refusals, paths."""

from pathlib import Path

import pytest

from biphasic.config import load_config, parse_config
from biphasic.data.building.config import CorpusConfig
from biphasic.errors import ConfigError


def config(**raw) -> CorpusConfig:
    return parse_config(CorpusConfig, raw, where="file.yaml")


def test_the_default_is_the_built_in_documentation():
    assert config() == CorpusConfig()
    assert [source.source for source in config().sources] == ["builtin:pydocs"]


def test_two_columns_of_a_file_are_two_sources():
    columns = [{"source": "a.jsonl", "column": column} for column in ("question", "answer")]
    assert len(config(sources=columns).sources) == 2


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"sources": []}, "sources"),
        ({"source": "builtin:pydocs"}, "unknown key 'source' (did you mean 'sources'?)"),
        ({"sources": ["hf:a/b?nam=x"]}, "sources.0: 'hf:a/b?nam=x': unknown key 'nam'"),
        ({"sources": [{"source": "a", "shar": 1}]}, "unknown key 'sources.0.shar'"),
        (
            {"sources": [{"source": "a", "share": 1}, "b"]},
            "give all sources a share or none; 'b' has none",
        ),
        ({"sources": ["b", "a", "b"]}, "sources: 'b' is the same text as 'b'; remove one"),
        ({"sources": ["b/c", "./b/d/../c/"]}, "sources: './b/d/../c/' is the same text as 'b/c'"),
        (
            {"sources": ["hf:a/b", "hf:a/b?split=train&column=text"]},
            "sources: 'hf:a/b?split=train&column=text' is the same text as 'hf:a/b'",
        ),
        ({"tokenizer": ""}, "tokenizer: string should have at least 1 character"),
        ({"tokenizer": "t", "vocab_size": 512}, "give a tokenizer, or the vocab_size of one"),
        ({"vocab_size": 299}, "vocab_size"),
        ({"vocab_size": 131_073}, "vocab_size"),
        ({"libraries": ["scipi"]}, "unknown library 'scipi' (did you mean 'scipy'?)"),
        ({"libraries": []}, "libraries"),
        (
            {"libraries": ["scipy"], "sources": ["a.txt"]},
            "'libraries' applies to builtin:pydocs, which is not a source here",
        ),
        (
            {"min_characters": 6, "max_characters": 5},
            "max_characters 5 is below min_characters 6",
        ),
        ({"min_characters": -1}, "min_characters"),
        ({"max_characters": 0}, "max_characters"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_documents": 0}, "max_documents"),
        ({"heldout_fraction": 0}, "heldout_fraction"),
        ({"heldout_fraction": 0.51}, "heldout_fraction"),
        (
            {"folder": "f", "max_tokens": 5},
            "'folder' is a finished corpus; 'max_tokens' cannot change it",
        ),
        ({"folder": "f", "sources": ["a"]}, "'folder' is a finished corpus; 'sources' cannot"),
    ],
    ids=str,
)
def test_mistakes_are_named(raw, message):
    with pytest.raises(ConfigError) as refused:
        config(**raw)
    assert str(refused.value).startswith("file.yaml: ")
    assert message in str(refused.value)


def test_relative_paths_are_taken_from_the_file_s_folder(tmp_path):
    (tmp_path / "tok").mkdir()
    made = config(
        sources=["in", "/abs", "hf:a/b", "builtin:pydocs"], tokenizer="tok", copies="copies"
    ).anchored(tmp_path)
    texts = [source.source for source in made.sources]
    assert texts == [str(tmp_path / "in"), "/abs", "hf:a/b", "builtin:pydocs"]
    assert made.tokenizer == str(tmp_path / "tok")
    assert made.copies == tmp_path / "copies"
    assert config(tokenizer="owner/name").anchored(tmp_path).tokenizer == "owner/name"
    assert config(folder="built").anchored(tmp_path).folder == tmp_path / "built"
    assert config(folder="~/built").anchored(tmp_path).folder == Path.home() / "built"


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"folder": "built"},
        {"sources": [{"source": "a", "share": 1}], "tokenizer": "t", "deduplicate": True},
    ],
    ids=str,
)
def test_written_out_in_full_it_loads_again(tmp_path, raw):
    import yaml

    made = config(**raw).anchored(tmp_path)
    (tmp_path / "corpus.yaml").write_text(yaml.safe_dump(made.model_dump(mode="json")))
    assert load_config(CorpusConfig, tmp_path / "corpus.yaml") == made
