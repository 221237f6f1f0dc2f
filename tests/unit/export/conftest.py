"""Small models on disk: a state of ours beside a store with results, and others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from export_states import CORPUS_HASH, IDENTITY, write_state

from biphasic.files import digest, write_json
from biphasic.store import complete_folder
from families import save_family

if TYPE_CHECKING:
    from biphasic.data.tokens.tokenizer import TextTokenizer


@pytest.fixture
def state(make_state: Callable[..., Path]) -> Path:
    """A state of ours in a store."""
    return make_state()


@pytest.fixture
def make_state(tmp_path: Path, tokenizer: TextTokenizer) -> Callable[..., Path]:
    """Return a writer of states with other details."""
    return lambda **details: write_state(tmp_path / "store", tokenizer, **details)


@pytest.fixture
def make_family(tmp_path: Path, tokenizer: TextTokenizer) -> Callable[..., Path]:
    """Return a writer of small models of a family, with the tokenizer."""

    def make(family: str, **changes: Any) -> Path:
        return save_family(family, tmp_path / family, tokenizer=tokenizer, **changes)

    return make


@pytest.fixture
def add_result(tmp_path: Path) -> Callable[..., None]:
    """Return a writer of fine-tunings into the state's store."""

    def add(
        task: str, rate: float, seed: int, validation: float | None, test: float | None, **more: Any
    ) -> None:
        result = {
            "format": "biphasic.finetune/1",
            "id": digest([task, rate, seed, str(more)]),
            "state": IDENTITY,
            "task": task,
            "kind": "sc",
            "metric": "accuracy",
            "learning_rate": rate,
            "seed": seed,
            "status": "diverged" if test is None else "finished",
            "steps": 10,
            "validation": None if validation is None else {"accuracy": validation},
            "test": None if test is None else {"accuracy": test},
            "seconds": 1.0,
            **more,
        }
        folder = tmp_path / "store" / "finetunes" / result["id"]
        with complete_folder(folder, id=result["id"]) as partial:
            write_json(partial / "result.json", result)

    return add


@pytest.fixture
def add_corpus(tmp_path: Path) -> Callable[..., None]:
    """Return a writer of a corpus's description into the state's store."""

    def add(content_hash: str = CORPUS_HASH, **details: Any) -> None:
        source = {
            "documents": 1200,
            "characters": 9,
            "tokens": 3_456_000,
            "licenses": {"mit": 1200},
        }
        message = {
            "content_hash": content_hash,
            "num_documents": 1200,
            "num_tokens": 3_456_000,
            "provenance": {"by_source": {"hf:some/text": source}},
            **details,
        }
        write_json(tmp_path / "store" / "data" / "key" / "train" / "corpus.json", message)

    return add
