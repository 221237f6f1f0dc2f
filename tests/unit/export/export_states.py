"""A state of ours, written as training writes it, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.files import digest

if TYPE_CHECKING:
    from biphasic.data.tokens.tokenizer import TextTokenizer

IDENTITY = digest("a state")
CORPUS_HASH = digest("a corpus")
RECIPE: dict[str, Any] = {
    "model": "pico",
    "phases": [
        {"objective": "clm", "steps": 3, "corpus": None, "learning_rate_scale": 1.0},
        {"objective": "mlm", "steps": 5, "mlm_probability": 0.4, "freeze": ["model.embed*"]},
    ],
    "learning_rate": {"peak": 2e-3, "warmup_steps": 1, "decay_steps": 2},
    "max_seqlen": 64,
    "rows_per_step": 4,
    "precision": "bf16",
}
LEDGER = [
    {
        "phase": phase,
        "objective": objective,
        "steps": steps,
        "documents": 10 * steps,
        "tokens": 1000 * steps,
        "supervised_tokens": 400 * steps,
        "flops": 2.5e9 * steps,
    }
    for phase, (objective, steps) in enumerate([("clm", 3), ("mlm", 5)])
]


def write_state(store: Path, tokenizer: TextTokenizer, **details: Any) -> Path:
    """Write a state as training does, with random weights, and the corpus that it read."""
    from biphasic.model.loading.build import architecture_config, new_model
    from biphasic.model.shape import PRESETS
    from biphasic.records import StateRecord
    from biphasic.training.state import Snapshot, save_state

    config = architecture_config(
        PRESETS["pico"],
        vocab_size=tokenizer.vocab_size,
        max_seqlen=64,
        special_ids=tokenizer.special_ids,
    )
    model = new_model(config, init_seed=3)
    message = {
        "format": "biphasic.state/1",
        "identity": IDENTITY,
        "step": 8,
        "parent": None,
        "recipe": RECIPE,
        "ground": {"corpus_hash": CORPUS_HASH, "tokenizer_sha256": tokenizer.sha256},
        "heldout": {"clm": 5.125, "mlm": 4.5},
        "heldout_sha256": digest("held out"),
        "rows_sha256": digest("rows"),
        "ledger": LEDGER,
        "seconds": 1.0,
        "environment": {"biphasic": "0.1.0", "libraries": {"torch": "2.13.0"}},
        **details,
    }
    snapshot = Snapshot(
        weights=dict(model.named_parameters()),
        moments={},
        record=StateRecord.model_validate(message),
        metrics="",
    )
    folder = store / "states" / message["identity"]
    save_state(folder, snapshot, config=config.to_dict(), tokenizer=tokenizer)
    return folder
