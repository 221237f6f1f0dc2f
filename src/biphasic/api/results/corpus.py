"""What functions about corpora return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.amounts import percent
from biphasic.shown import Shown

if TYPE_CHECKING:
    from biphasic.data.building.inspect import CorpusSummary

SPLITS = ("train", "heldout")
_BAR_WIDTH = 40
_MOST_SOURCES = 12


@dataclass(frozen=True, repr=False)
class BuiltCorpus(Shown):
    """What `corpus.build` and `corpus.merge` return.

    Attributes:
        folder: Folder of the corpus.
        notes: How it was made, and what was left out.
    """

    folder: Path
    notes: tuple[str, ...] = ()

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each split."""
        from biphasic.data.corpus import DETAILS, REMEDY
        from biphasic.files import read_json

        details = [
            (part, read_json(part / DETAILS, remedy=REMEDY)) for part in parts_of(self.folder)
        ]
        return [
            {"split": part.name, "documents": one["num_documents"], "tokens": one["num_tokens"]}
            for part, one in details
        ]

    def lines(self) -> Iterator[str]:
        """Return counts, what was left out, and the folder."""
        for row in self.table():
            yield f"{row['split']}: {row['documents']:,} documents, {row['tokens']:,} tokens"
        yield from self.notes
        yield f"corpus: {self.folder}"


@dataclass(frozen=True, repr=False)
class InspectedCorpus(Shown):
    """What `corpus.inspect` returns.

    Attributes:
        summaries: Counts, lengths, samples and sources of each split.
        notes: Warnings, and what the build left out.
    """

    summaries: Mapping[str, CorpusSummary]
    max_seqlen: int
    notes: tuple[str, ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each split and range of lengths."""
        return [
            {
                "split": name,
                "first": part.first,
                "last": part.last,
                "documents": part.documents,
                "tokens": part.tokens,
            }
            for name, summary in self.summaries.items()
            for part in summary.lengths
        ]

    def lines(self) -> Iterator[str]:
        """Return the description of each split."""
        for name, summary in self.summaries.items():
            yield from _describe(name, summary, self.max_seqlen)


@dataclass(frozen=True, repr=False)
class IntactCorpus(Shown):
    """What `corpus.verify` returns: the splits, all intact."""

    rows: tuple[Mapping[str, Any], ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each split."""
        return self.rows

    def lines(self) -> Iterator[str]:
        """Return a line for each split."""
        for row in self.rows:
            counts = f"{row['documents']:,} documents, {row['tokens']:,} tokens"
            yield f"{row['split']}: {counts}: intact"


def parts_of(folder: Path) -> list[Path]:
    """Return the corpora in a folder: train and heldout, or the folder itself."""
    parts = [folder / split for split in SPLITS if (folder / split).is_dir()]
    return parts or [folder]


def _describe(name: str, summary: CorpusSummary, max_seqlen: int) -> Iterator[str]:
    mean = summary.tokens / summary.documents
    percentiles = ", ".join(f"{at} %: {value:,}" for at, value in summary.percentiles.items())
    yield f"{name}: {summary.documents:,} documents, {summary.tokens:,} tokens"
    yield f"  {summary.shards} shards of {summary.dtype}, content {summary.content_hash[:16]}"
    yield f"  tokens per document: mean {mean:,.0f}; {percentiles}"
    most = max(part.documents for part in summary.lengths)
    for part in summary.lengths:
        bar = "#" * -(-part.documents * _BAR_WIDTH // most)
        yield f"  {part.first:>9,} - {part.last:<9,} {part.documents:>11,} {bar}"
    yield (
        f"  rows of {max_seqlen}: {percent(round(summary.fill_rate, 3))} full "
        f"(over {summary.fill_rows:,} rows)"
    )
    yield f"  exact duplicates: {summary.duplicates:,}"
    for source, counts in summary.sources[:_MOST_SOURCES]:
        documents, tokens = counts["documents"], counts["tokens"]
        share = 100 * tokens / summary.tokens
        yield f"  source {source}: {documents:,} documents, {tokens:,} tokens ({share:.1f} %)"
        for license_name, documents in counts["licenses"].items():
            yield f"    {license_name}: {documents:,} documents"
    if len(summary.sources) > _MOST_SOURCES:
        yield f"  and {len(summary.sources) - _MOST_SOURCES} more sources"
    if summary.is_other_tokenizer:
        yield "  WARNING: built with another tokenizer than the one next to it; cannot show text"
    if summary.mask_document is not None:
        yield f"  WARNING: document {summary.mask_document} contains the mask token"
    for token, count in summary.special_in_text.items():
        yield f"  special token {token} in the text: {count:,} times"
    for sample in summary.samples:
        text = " ".join(sample.text.split())
        yield f"  document {sample.document} ({sample.id}, {sample.tokens:,} tokens): {text}"
