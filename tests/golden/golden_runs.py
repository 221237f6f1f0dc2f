"""The runs whose numbers are kept: each objective, their sequence, and each kind of task."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from golden_tasks import TASKS
from golden_text import documents, tokenizer
from safetensors.numpy import load_file
from transformers import BertConfig

from biphasic.config import parse_config
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.files import digest, read_json
from biphasic.model.loading.build import load_encoder, new_model
from biphasic.model.shape import PRESETS
from biphasic.tasks.finetune import Finetuner, FinetuneRun, encode_task
from biphasic.tasks.kinds.kind import SplitScores
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.loop import RunOptions, train_segment
from biphasic.training.recipe import Recipe
from text_corpus import write_corpus

_CLM, _MLM = ({"objective": name, "steps": 12} for name in ("clm", "mlm"))
_HALVES = [{**phase, "steps": 6} for phase in (_CLM, _MLM)]
_PROTOCOL = FinetuneProtocol(
    max_steps=24,
    max_epochs=2,
    batch_size=8,
    max_seqlen=40,
    max_question_tokens=8,
    window_overlap=8,
)
_FINETUNING_RATE = 3e-3


def pretrain(folder: Path, **settings: Any) -> dict[str, Any]:
    """Train from random weights: every loss and gradient norm, and what came of it."""
    state = _trained(folder, **settings)
    lines = map(json.loads, (state / "metrics.jsonl").read_text("utf-8").splitlines())
    steps = [line for line in lines if "loss" in line]
    details = read_json(state / "state.json")
    return {
        "losses": [line["loss"] for line in steps],
        "gradient_norms": [line["gradient_norm"] for line in steps],
        "heldout_losses": details["heldout"],
        "rows_sha256": details["rows_sha256"],
        "weights_sha256": _weights_sha256(state / "model.safetensors"),
    }


def finetune(folder: Path, *, kind: str, model: Callable[[Path], Path]) -> dict[str, Any]:
    """Fine-tune a random model that is loaded as any other: every loss, and the scores."""
    saved = model(folder)
    task = encode_task(TASKS[kind](), TextTokenizer.load(saved), protocol=_PROTOCOL)
    run = FinetuneRun(task, _FINETUNING_RATE, seed=0, protocol=_PROTOCOL)
    finetuner = Finetuner(load_encoder(saved), precision=_PROTOCOL.precision)
    losses: list[float] = []
    [(_, splits)] = finetuner.run(run, progress=lambda *done: losses.append(done[-1]))
    if not splits:
        raise ValueError(f"the fine-tuning on {kind} diverged")
    return {
        "losses": losses,
        "scores": {
            f"{split} {metric}": value
            for split, scores in splits.items()
            for metric, value in scores.metrics.items()
        },
        "examples_sha256": digest({name: _dump(split) for name, split in splits.items()}),
    }


def _untrained(folder: Path) -> Path:
    return _trained(folder, phases=[], precision="fp32")


def _bert(folder: Path) -> Path:
    """Write a random model that has dropout, which ours have not."""
    words, architecture = tokenizer(), PRESETS["pico"]
    config = BertConfig(
        vocab_size=words.vocab_size,
        hidden_size=architecture.hidden_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        intermediate_size=architecture.intermediate_size,
        max_position_embeddings=_PROTOCOL.max_seqlen,
        pad_token_id=words.pad_id,
    )
    new_model(config, init_seed=0).save_pretrained(folder / "bert")
    words.save(folder / "bert")
    return folder / "bert"


def _trained(
    folder: Path,
    *,
    phases: list[dict[str, Any]],
    precision: str,
    optimizer: str = "adamw",
    max_seqlen: int = 64,
    predicted_only: bool = False,
    cpu_kernels: bool = False,
) -> Path:
    """Return the folder of the last state."""
    rate = {"peak": 2e-3, "warmup_steps": 2, "decay_steps": 4} if phases else {"peak": 2e-3}
    raw = {
        "model": "pico",
        "phases": phases,
        "learning_rate": rate,
        "max_seqlen": max_seqlen,
        "rows_per_step": 8,
        "precision": precision,
        "optimizer": {"name": optimizer},
    }
    recipe = parse_config(Recipe, raw, where="golden")
    data = _data(folder)
    lineage = Lineage(recipe, data.fingerprint)
    compute = ComputeConfig(predicted_only=predicted_only, cpu_kernels=cpu_kernels)
    options = RunOptions(compute=compute)
    return train_segment(
        lineage, data, folder / "store", start=0, end=recipe.total_steps, options=options
    )


def _data(folder: Path) -> TrainingData:
    words = tokenizer()
    corpora = (
        write_corpus(folder / name, documents(name, count), words, provenance={})
        for name, count in (("train", 120), ("heldout", 24))
    )
    return TrainingData(*corpora, words)


def _weights_sha256(path: Path) -> str:
    """Hash names and values, not the file: its header may change with the library."""
    hasher = hashlib.sha256()
    for name, weight in sorted(load_file(path).items()):
        hasher.update(name.encode())
        hasher.update(weight.tobytes())
    return hasher.hexdigest()


def _dump(split: SplitScores) -> dict[str, Any]:
    # Clusters are names of examples, and came after the numbers were recorded.
    columns = {
        name: np.asarray(column).tolist()
        for name, column in split.columns.items()
        if name != "cluster"
    }
    return {"ids": split.ids, "scores": split.scores.tolist(), "columns": columns}


RUNS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "clm": partial(pretrain, phases=[_CLM], precision="fp32"),
    "clm-mlm-cpu-kernels": partial(
        pretrain, phases=_HALVES, precision="fp32", max_seqlen=160, cpu_kernels=True
    ),
    "mlm": partial(pretrain, phases=[_MLM], precision="fp32"),
    "mlm-predicted-only": partial(pretrain, phases=[_MLM], precision="fp32", predicted_only=True),
    "clm-mlm": partial(pretrain, phases=_HALVES, precision="fp32"),
    "clm-mlm-muon": partial(pretrain, phases=_HALVES, precision="fp32", optimizer="muon"),
    "clm-mlm-bf16": partial(pretrain, phases=_HALVES, precision="bf16"),
    **{f"finetune-{kind}": partial(finetune, kind=kind, model=_untrained) for kind in TASKS},
    "finetune-sc-dropout": partial(finetune, kind="sc", model=_bert),
}
"""By name; each works in an empty folder and returns what is kept."""
