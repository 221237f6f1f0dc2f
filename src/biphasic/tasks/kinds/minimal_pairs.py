"""Minimal pairs: two sentences, of which a language model should prefer the acceptable one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from biphasic.errors import ConfigError
from biphasic.facts import KindFacts, metric_facts
from biphasic.files import read_json
from biphasic.records import StateRecord, parse_record
from biphasic.seeds import permutation, stream
from biphasic.tasks.kinds.examples import ExampleKind
from biphasic.tasks.protocol import FinetuneProtocol, Reading
from biphasic.tasks.records import ExampleTask, MinimalPair
from biphasic.tasks.rows.content import TaskContent
from biphasic.tasks.rows.row import Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.custom.task_file import TaskFile
    from biphasic.tasks.encoded.pairs import EncodedPairs

PER_PARADIGM = "pairs_per_paradigm"
"""Setting of kinds whose examples are sampled in groups."""
_GOOD, _BAD, _PARADIGM = "sentence_good", "sentence_bad", "UID"  # BLiMP's names
_READINGS: tuple[Literal["mlm"], Literal["mntp"], Literal["clm"]] = ("mlm", "mntp", "clm")


class MinimalPairs(ExampleKind):
    """Pairs of sentences; right if the acceptable one has the higher probability."""

    name = "mp"
    facts = KindFacts("minimal pairs", (metric_facts("accuracy"),), is_trained=False)
    settings = (PER_PARADIGM,)
    columns = ("id", _GOOD, _BAD, _PARADIGM)
    unit = "pairs"
    texts_per_item = 2
    predicts = False

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> MinimalPair:
        """Return a pair, and its paradigm if it has one."""
        del labels, template
        for name in (_GOOD, _BAD):
            if not row.text(name).strip():
                raise row.error(f"'{name}' is empty")
        # Equal sentences are a tie and not an error: BLiMP has such pairs.
        return MinimalPair(
            row.id(), good=row.text(_GOOD), bad=row.text(_BAD), group=row.text(_PARADIGM, "")
        )

    def input_of(self, example: MinimalPair) -> tuple[str, str]:
        """Return both sentences."""
        return example.good, example.bad

    def choose_columns(self, there: Collection[str], path: Path, file: TaskFile) -> dict[str, str]:
        """Return the columns of the sentences, and that of paradigms if there is one."""
        chosen = super().choose_columns(there, path, file)
        if _PARADIGM not in file.columns and _PARADIGM not in there:
            del chosen[_PARADIGM]
        return chosen

    def read_files(
        self, file: TaskFile, files: Mapping[str, Path], *, where: str
    ) -> tuple[TaskContent, dict[str, int]]:
        """Read the user's files, and draw pairs of each paradigm if that is set."""
        content, counts = super().read_files(file, files, where=where)
        if file.pairs_per_paradigm is None:
            return content, counts
        splits = {
            split: list(_sample(list(rows), file.pairs_per_paradigm, seed=file.seed))
            for split, rows in content.splits.items()
        }
        return replace(content, splits=splits), {split: len(r) for split, r in splits.items()}

    def protocol_for(self, protocol: FinetuneProtocol, model: Path) -> FinetuneProtocol:
        """Fill in how a model reads: as its last objective trained it."""
        if protocol.reading is None:
            reading: Reading = "clm" if protocol.is_causal else usual_reading(model)
            protocol = protocol.model_copy(update={"reading": reading})
        attention = "causal" if protocol.reading == "clm" else "bidirectional"
        return protocol.model_copy(update={"attention": attention})

    def load(self, model: Path, protocol: FinetuneProtocol) -> PreTrainedModel:
        """Load a model with its language-model head."""
        from biphasic.model.loading.build import load_pretrained  # noqa: PLC0415

        if protocol.batching == "padded":
            raise ConfigError("batching: minimal pairs are read in packed rows only")
        return load_pretrained(model)

    def encode(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> EncodedPairs:
        """Tokenise the sentences."""
        from biphasic.tasks.encoded.pairs import encode_pairs  # noqa: PLC0415

        return encode_pairs(task, tokenizer, protocol=protocol)

    def num_outputs(self, labels: Sequence[str]) -> int:
        """Return none: the language-model head answers."""
        del labels
        return 0


def usual_reading(model: Path) -> Reading:
    """Return the last objective of a state, or what the family of an untrained model is made for.

    Where objectives alternated or were mixed, it is the one with masks.
    """
    trained_by = _last_objectives(model / "state.json")
    for reading in _READINGS:
        if reading in trained_by:
            return reading
    from biphasic.model.loading.directions import is_decoder, is_open  # noqa: PLC0415
    from biphasic.model.loading.reading import read_config  # noqa: PLC0415

    config = read_config(model)
    if is_open(config):
        raise ConfigError(
            f"{model.name}: a decoder made bidirectional, which does not say by which objective; "
            "set reading to mlm or mntp in the protocol"
        )
    return "clm" if is_decoder(config) else "mlm"


def _last_objectives(path: Path) -> set[str]:
    """Return the objectives of the last phase of a state; none of an untrained or other model."""
    if not path.is_file():
        return set()
    state = parse_record(StateRecord, read_json(path), where=str(path))
    if not state.ledger:
        return set()
    last = state.ledger[-1]
    phases = state.recipe.get("phases") or ()
    return {last.objective, *_names(phases[last.phase] if last.phase < len(phases) else {})}


def _names(objective: Mapping[str, Any]) -> Iterator[str]:
    yield str(objective.get("objective"))
    for part in objective.get("objectives") or ():
        yield from _names(part)


def _sample(
    rows: Sequence[Mapping[str, Any]], most: int, *, seed: int
) -> Iterator[Mapping[str, Any]]:
    """Yield at most some rows of each paradigm; the draw of one does not depend on others."""
    paradigms: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        paradigms.setdefault(row.get(_PARADIGM, ""), []).append(index)
    kept = [
        indices[place]
        for name, indices in paradigms.items()
        for place in permutation(stream(f"pairs-{name}", seed), len(indices))[:most]
    ]
    yield from (rows[index] for index in np.sort(kept))
