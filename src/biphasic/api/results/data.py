"""What functions about pairs and tokenizers return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.shown import Shown

if TYPE_CHECKING:
    from biphasic.data.pairs.folder import Pairs

_WIDTH = 160  # of a text that is shown


@dataclass(frozen=True, repr=False)
class BuiltPairs(Shown):
    """What `pairs.build`, `pairs.mine` and `pairs.teach` return.

    Attributes:
        folder: Folder of the pairs.
        pairs: The pairs; `pairs.pair(0).query`, `pairs.pair(0).positive`.
        notes: What is probably not wanted.
    """

    folder: Path
    pairs: Pairs
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each source: what was read, left out and kept."""
        counts = self.pairs.details.get("counts", {})
        return [{"source": name, **numbers} for name, numbers in counts.items()]

    def lines(self) -> Iterator[str]:
        """Return the counts, and the folder."""
        yield from self._counts()
        yield from (f"warning: {note}" for note in self.notes)
        yield f"pairs: {self.folder}"

    def _counts(self) -> Iterator[str]:
        details = self.pairs.details
        yield (
            f"{details['num_pairs']:,} pairs of {details['num_texts']:,} texts, with "
            f"{details['num_negatives']:,} negatives"
        )
        for name, counts in details.get("counts", {}).items():
            yield (
                f"{name}: read {counts['read']:,}, in evaluation tasks {counts['judged']:,}, "
                f"repeated {counts['repeated']:,}, kept {counts['kept']:,}"
            )
            for task, count in sorted(counts["by_task"].items()):
                yield f"  {task} {count:,}"
        yield f"content {details['content_hash'][:16]}"


@dataclass(frozen=True, repr=False)
class InspectedPairs(BuiltPairs):
    """What `pairs.inspect` returns.

    Attributes:
        numbers: The pairs to show, by number.
    """

    numbers: tuple[int, ...]

    def lines(self) -> Iterator[str]:
        """Return the counts, and some pairs."""
        yield from self._counts()
        for number in self.numbers:
            pair = self.pairs.pair(number)
            yield f"\npair {number:,} ({pair.source})"
            texts = {"query": [pair.query], "positive": [pair.positive], "negative": pair.negatives}
            for name, values in texts.items():
                for line in (" ".join(text.split()) for text in values):
                    yield f"  {name}: {line[:_WIDTH]}{'...' * (len(line) > _WIDTH)}"


@dataclass(frozen=True, repr=False)
class TrainedTokenizer(Shown):
    """What `tokenizer.train` returns.

    Attributes:
        folder: Folder of the tokenizer.
        vocab_size: Entries of its vocabulary.
        notes: What was read; a note if it was made before.
    """

    folder: Path
    vocab_size: int
    notes: tuple[str, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for the tokenizer."""
        return [{"folder": str(self.folder), "vocab_size": self.vocab_size}]

    def lines(self) -> Sequence[str]:
        """Return what was read, and the folder."""
        return self.notes


@dataclass(frozen=True, repr=False)
class CheckedTokenizer(Shown):
    """What `tokenizer.check` returns.

    Attributes:
        special: Each special token's role, text and id; the last is the mask token of a corpus.
        mask_reason: Why this is the mask token.
        vocab_size: Number of ids, with the mask token.
        warning: A known error of the files, and its remedy; empty if there is none.
    """

    special: tuple[tuple[str, str, int], ...]
    mask_reason: str
    vocab_size: int
    warning: str = ""

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each special token."""
        return [{"role": role, "token": token, "id": id_} for role, token, id_ in self.special]

    def lines(self) -> Iterator[str]:
        """Return the special tokens, the size of the vocabulary, and a warning."""
        for role, token, id_ in self.special:
            reason = f": {self.mask_reason}" if role == "mask" else ""
            yield f"{role:<13} {token} ({id_}){reason}"
        yield f"{'vocabulary':<13} {self.vocab_size:,} ids"
        yield f"{'bytes per id':<13} {2 if self.vocab_size <= 1 << 16 else 4}"
        if self.warning:
            yield f"warning: {self.warning}"
