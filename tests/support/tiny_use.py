"""Tiny models in the hub's format, and tiny task folders that they learn in a second."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers

from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer

FILLERS = ["the", "sat", "on", "mat", "and", "ran", "to", "with"]
TEXT = "the cat sat on the mat and the dog ran to Paris with Anna \n Question Document: Query: . ,"
SIZES = {"train": 96, "validation": 24, "test": 24}
ANIMALS = ["cat", "dog", "Anna"]
LABELS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
DECODER: dict[str, Any] = {**SHAPE, "num_key_value_heads": 1}


@cache
def tiny_tokenizer() -> TextTokenizer:
    return train_tokenizer([TEXT] * 20, vocab_size=320)


def sentencepiece(normalizer: Any = None, pre_tokenizer: Any = None) -> TextTokenizer:
    """Return a tokenizer of words that begin with `▁`; rules may put one before each text."""
    pieces = ["<unk>", "<s>", "</s>", "<mask>", "▁the", "▁big", "▁cat", "cat", "▁.", ".", "▁"]
    pieces += [f"▁{number}" for number in range(50)]
    inner = Tokenizer(models.Unigram([(piece, -float(len(pieces))) for piece in pieces], unk_id=0))
    steps = [each for each in (normalizer, normalizers.Replace(" ", "▁")) if each]
    inner.normalizer = normalizers.Sequence(steps)
    if pre_tokenizer:
        inner.pre_tokenizer = pre_tokenizer
    inner.add_special_tokens(pieces[:4])
    return TextTokenizer(inner, {"bos": "<s>", "eos": "</s>", "pad": "</s>", "mask": "<mask>"})


def write_model(folder: Path, family: str, tokenizer: TextTokenizer | None = None) -> Path:
    """Write a random model with a language-model head, and its tokenizer."""
    import transformers as hf

    tokenizer = tokenizer or tiny_tokenizer()
    shared = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    makers: dict[str, Any] = {
        "eurobert": lambda: hf.EuroBertForMaskedLM(hf.EuroBertConfig(**DECODER, **shared)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER, **shared)),
        "qwen3": lambda: hf.Qwen3ForCausalLM(
            hf.Qwen3Config(**DECODER, **shared, head_dim=16, sliding_window=None)
        ),
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**SHAPE, **shared)),
        "modernbert": lambda: hf.ModernBertForMaskedLM(
            hf.ModernBertConfig(
                **SHAPE,
                **shared,
                bos_token_id=0,
                eos_token_id=1,
                cls_token_id=0,
                sep_token_id=1,
                global_attn_every_n_layers=2,
                local_attention=32,
            )
        ),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        makers[family]().save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def link_model(source: Path, folder: Path, *, modules: int, **settings: Any) -> Path:
    """Link a sentence-transformers model with its first modules alone, and other settings."""
    shutil.copytree(source, folder, copy_function=os.symlink)
    for name, content in (
        ("modules.json", json.loads((source / "modules.json").read_text())[:modules]),
        ("config_sentence_transformers.json", settings),
    ):
        (folder / name).unlink()
        (folder / name).write_text(json.dumps(content))
    return folder


def write_head(folder: Path, kind: str, *, fill: float | None = None, **details: Any) -> None:
    """Make a model's folder one of a fine-tuned model: its head random, or `fill` everywhere."""
    from safetensors.torch import save_file

    from biphasic.tasks.protocol import FinetuneProtocol
    from biphasic.tasks.records import HeadRecord

    forms = {"tc": "token-classification", "qa": "question-answering"}
    labels = {"sc": ("cat", "dog"), "ml": ("cat", "dog"), "tc": LABELS}.get(kind, ())
    number = {"sr": 1, "qa": 2}.get(kind, len(labels))
    draw, shapes = torch.Generator().manual_seed(1), {"weight": (number, 32), "bias": (number,)}
    head = {
        name: torch.randn(shape, generator=draw) if fill is None else torch.full(shape, fill)
        for name, shape in shapes.items()
    }
    save_file(head, folder / "head.safetensors")
    names = {"file": "head.safetensors", "weight": "weight", "bias": "bias"}
    protocol = FinetuneProtocol(max_seqlen=64, max_question_tokens=8, window_overlap=8)
    record = {
        "format": "biphasic.head/1",
        "kind": kind,
        "form": forms.get(kind, "sequence-classification"),
        "task": "t",
        "title": "T",
        "metric": "m",
        "model": "eurobert",
        "model_identity": "0",
        "learning_rate": 1e-3,
        "seed": 0,
        "steps": 1,
        "protocol": protocol.model_dump(mode="json"),
        "head": {**names, "num_outputs": number},
        "labels": labels,
        "fields": ("text",) if kind in {"sc", "ml", "sr"} else (),
        **details,
    }
    written = HeadRecord.model_validate(record).model_dump_json(exclude_none=True)
    (folder / "head.json").write_text(written)


def write_task(folder: Path, kind: str, sizes: dict[str, int] = SIZES) -> Path:
    """Write a task folder of a kind; `sizes` are those of the splits, except of retrieval."""
    folder.mkdir(parents=True)
    if kind in {"ir", "zs"}:
        _write_retrieval(folder, kind)
    else:
        rng = np.random.default_rng(0)
        draw = {"sc": _labelled, "ml": _several, "sr": _scored, "tc": _tagged, "qa": _question}[
            kind
        ]
        for split, size in sizes.items():
            rows = [{"id": f"{split}-{number}", **draw(rng)} for number in range(size)]
            write_jsonl(folder / f"{split}.jsonl", rows)
    if kind == "sc":
        (folder / "labels.json").write_text('["cat", "dog"]')
    if kind == "ml":
        (folder / "labels.json").write_text(json.dumps(ANIMALS))
    if kind == "tc":
        (folder / "labels.json").write_text(json.dumps(LABELS))
    description = {"name": f"tiny-{kind}", "kind": kind, "title": "Tiny"}
    (folder / "task.json").write_text(json.dumps(description))
    return folder


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def words(rng: np.random.Generator, low: int = 2, high: int = 8) -> list[str]:
    return rng.choice(FILLERS, int(rng.integers(low, high))).tolist()


def _labelled(rng: np.random.Generator) -> dict[str, Any]:
    label, text = int(rng.integers(2)), words(rng)
    text.insert(int(rng.integers(len(text))), ("cat", "dog")[label])
    return {"text": " ".join(text), "label": label}


def _several(rng: np.random.Generator) -> dict[str, Any]:
    labels = np.flatnonzero(rng.random(len(ANIMALS)) < 0.4).tolist()
    text = rng.permutation([*words(rng), *(ANIMALS[label] for label in labels)]).tolist()
    return {"text": " ".join(text), "labels": labels}


def _scored(rng: np.random.Generator) -> dict[str, Any]:
    cats = int(rng.integers(9))
    text = rng.permutation(["cat"] * cats + ["dog"] * (8 - cats)).tolist()
    return {"text": " ".join(text), "value": 100.0 + 10 * cats}


def _tagged(rng: np.random.Generator) -> dict[str, Any]:
    tokens = words(rng)
    tags = ["O"] * len(tokens)
    for name, tag in (("Paris", "B-LOC"), ("Anna", "B-PER")):
        after = words(rng, 1, 3)
        tokens += [name, *after]
        tags += [tag, *["O"] * len(after)]
    return {"tokens": tokens, "tags": tags}


def _question(rng: np.random.Generator) -> dict[str, Any]:
    wanted, context = ("Anna", "Paris")[int(rng.integers(2))], words(rng, 4, 9)
    is_there = bool(rng.random() < 0.75)
    if is_there:
        context.insert(int(rng.integers(len(context))), wanted)
    text = " ".join(context)
    answers = {"text": [wanted], "answer_start": [text.index(wanted)]} if is_there else None
    return {
        "question": {"Anna": "dog", "Paris": "cat"}[wanted],
        "context": text,
        "answers": answers or {"text": [], "answer_start": []},
    }


def _write_retrieval(folder: Path, kind: str) -> None:
    rng = np.random.default_rng(3)
    topics = ["cat", "dog", "Paris", "Anna"]
    corpus = [
        {"_id": f"d{n}", "title": "", "text": " ".join([*words(rng), topics[n % 4]])}
        for n in range(24)
    ]
    queries = []
    (folder / "qrels").mkdir()
    for split, size in SIZES.items():
        if kind == "zs" and split == "train":
            continue
        lines = ["query-id\tcorpus-id\tscore"]
        for number in range(size):
            key = f"{split}{number}"
            queries.append({"_id": key, "text": f"{topics[number % 4]} {rng.choice(FILLERS)}"})
            lines += [f"{key}\td{n}\t1" for n in range(24) if n % 4 == number % 4]
        (folder / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n")
    write_jsonl(folder / "corpus.jsonl", corpus)
    write_jsonl(folder / "queries.jsonl", queries)
