"""How a state gives vectors to texts: as its last phase has trained it to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biphasic.files import read_json_object
from biphasic.model.compute.pooling import Pooling
from biphasic.records import StateRecord

_STATE = "state.json"


@dataclass(frozen=True)
class TrainedVectors:
    """By default, means of states that are read in both directions, without prompts."""

    pooling: Pooling = "mean"
    attention: str = "bidirectional"
    prompts: Mapping[str, str] = field(default_factory=dict)  # by sentence-transformers' names
    similarity: str = "cosine"  # of two vectors, by sentence-transformers' name
    is_on_pairs: bool = False  # whether the last phase read pairs

    @property
    def causal(self) -> bool:
        """Whether texts are read from left to right."""
        return self.attention == "causal"

    @classmethod
    def of(cls, state: StateRecord | None) -> TrainedVectors:
        """Return what the last phase of a state trained, if it trained on pairs."""
        phases = () if state is None else state.recipe.get("phases") or ()
        last: Mapping[str, Any] = phases[state.ledger[-1].phase] if state and state.ledger else {}
        named = {name: last.get(f"{name}_prompt") for name in ("query", "document")}
        return cls(
            pooling=last.get("pooling", cls.pooling),
            attention=last.get("attention", cls.attention),
            prompts={name: prompt for name, prompt in named.items() if prompt},
            similarity=last.get("similarity", cls.similarity),
            is_on_pairs="pairs" in last,
        )

    @classmethod
    def in_folder(cls, folder: Path) -> TrainedVectors:
        """Return what was trained into a model; the default if its folder is no state."""
        path = folder / _STATE
        return cls.of(
            StateRecord.model_validate(read_json_object(path)) if path.is_file() else None
        )
