"""The `biphasic corpus` commands: build, inspect, verify, merge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biphasic.cli.options import Commands, Copies, Out, Positive, Quiet, echo, progress_console
from biphasic.errors import ConfigError, DataError

if TYPE_CHECKING:
    from biphasic.data.building.blend import BuildProgress
    from biphasic.data.building.build import CorpusFolders
    from biphasic.data.building.config import CorpusConfig
    from biphasic.data.building.inspect import CorpusSummary

corpus_app = Commands("Build and inspect corpora for pretraining.")

_SPLITS = ("train", "heldout")
_BAR_WIDTH = 40
_MOST_SOURCES = 12

Folder = Annotated[
    Path, typer.Argument(help="Folder made by 'biphasic corpus build', or one corpus in it.")
]


@corpus_app.command("build")
def corpus_build(
    sources: Annotated[list[str] | None, typer.Argument(metavar="SOURCE...")] = None,
    *,
    out: Out,
    spec: Path | None = None,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    column: str | None = None,
    shares: Annotated[list[float] | None, typer.Option("--share")] = None,
    max_tokens: int | None = None,
    deduplicate: bool | None = None,
    heldout_fraction: float | None = None,
    copies: Copies = None,
    workers: Positive = None,
    quiet: Quiet = False,
) -> None:
    """Build a corpus; run again to resume after an interruption.

    The result does not depend on interruptions or on the number of workers.

    Args:
        sources: File or folder of .txt, .md, .jsonl (.gz, .zst) or .parquet;
            hf:OWNER/NAME?name=CONFIG&split=SPLIT&revision=REVISION; or builtin:pydocs. Default:
            the spec's sources, or the built-in documentation.
        out: Folder for tokenizer, train and heldout.
        spec: Corpus file (YAML) with all settings; options override it.
        tokenizer: Folder or hub id of a tokenizer. Default: train one.
        vocab_size: Vocabulary size of the tokenizer to train. Default: 8192.
        column: Column or JSON key of the text. Default: text.
        shares: Share of tokens; once per SOURCE, in the same order.
        max_tokens: Maximum tokens in the training split.
        deduplicate: Skip exact duplicates of earlier documents.
        heldout_fraction: Fraction of documents to hold out, by hash. Default: 0.01.
        workers: Tokenizer processes. Default: one per core.
    """
    from biphasic.data.building.blend import build_bar
    from biphasic.data.building.build import build_corpus
    from biphasic.progress import say_on

    settings = {
        "tokenizer": tokenizer,
        "vocab_size": vocab_size,
        "max_tokens": max_tokens,
        "deduplicate": deduplicate,
        "heldout_fraction": heldout_fraction,
        "hub_copies": str(copies) if copies else None,
    }
    config = _config(sources or (), spec, settings, column=column, shares=shares or ())
    last: list[BuildProgress] = []
    console = progress_console(quiet=quiet)
    with build_bar(console) as show:

        def report(progress: BuildProgress) -> None:
            last[:] = [progress]
            show(progress)

        folders = build_corpus(
            config,
            out,
            num_workers=workers,
            say=say_on(console),
            progress=report,
        )
    _print_build(out, folders, last[0] if last else None)


@corpus_app.command("inspect")
def corpus_inspect(
    folder: Folder,
    max_seqlen: Annotated[int, typer.Option(min=8)] = 512,
    samples: Annotated[int, typer.Option(min=0)] = 3,
) -> None:
    """Show counts, lengths, samples, row fill, duplicates and sources.

    Args:
        max_seqlen: Row length in tokens, to measure how full rows are.
        samples: Documents to show.
    """
    from biphasic.data.building.build import RECORD
    from biphasic.data.building.inspect import inspect_corpus
    from biphasic.data.tokens.tokenizer import TextTokenizer

    if _is_build(folder) and not (folder / RECORD).is_file():
        echo(f"WARNING: unfinished (no {RECORD}); run its 'corpus build' again", err=True)
    beside = (folder / "tokenizer", folder.resolve().parent / "tokenizer")
    tokenizer_folder = next((place for place in beside if place.is_dir()), None)
    tokenizer = TextTokenizer.load(tokenizer_folder) if tokenizer_folder else None
    for part in _parts(folder):
        summary = inspect_corpus(
            part, tokenizer=tokenizer, max_seqlen=max_seqlen, num_samples=samples
        )
        echo("\n".join(_describe(part.name, summary, max_seqlen)))


@corpus_app.command("verify")
def corpus_verify(folder: Folder) -> None:
    """Verify the hashes and the consistency of a corpus.

    The exit code is 2 if it is damaged.
    """
    from biphasic.data.building.verify import verify_build, verify_corpus

    for corpus in verify_build(folder) if _is_build(folder) else (verify_corpus(folder),):
        counts = f"{len(corpus):,} documents, {corpus.num_tokens:,} tokens"
        echo(f"{corpus.folder.name}: {counts}: intact")


@corpus_app.command("merge")
def corpus_merge(folders: list[Path], out: Out) -> None:
    """Merge corpora that have the same tokenizer.

    Training splits are merged with training splits, held-out splits with held-out splits.

    Args:
        folders: Folders made with one tokenizer, in the order to merge.
        out: Folder for the merged corpus.
    """
    from biphasic.data.building.merge import merge_builds, merge_corpora

    kinds = {_is_build(folder) for folder in folders}
    if len(kinds) > 1:
        raise ConfigError("merge: give either built folders or single corpora, not both")
    if kinds == {True}:
        merge_builds(folders, out, say=echo)
    else:
        merge_corpora(folders, out)
    for part in _parts(out):
        echo(_counts(part))
    echo(f"corpus: {out}")


def _config(
    sources: Any, spec: Path | None, settings: dict[str, Any], *, column: str | None, shares: Any
) -> CorpusConfig:
    """Override the spec's settings with options."""
    from biphasic.config import load_config, parse_config
    from biphasic.data.building.config import CorpusConfig

    raw: dict[str, Any] = {}
    if spec:
        base = load_config(CorpusConfig, spec).anchored(spec.resolve().parent)
        raw = base.model_dump(mode="json", exclude_unset=True)
    if sources:
        raw["sources"] = [{"source": source} for source in sources]
    for name, value in (("column", column), ("share", shares)):
        if value and "sources" not in raw:
            raise ConfigError(f"--{name}: give the sources it applies to")
    if shares and len(shares) != len(raw["sources"]):
        raise ConfigError(
            f"--share: {len(shares)} given for {len(raw['sources'])} sources; give one for each"
        )
    for place, source in enumerate(raw.get("sources", ())):
        if column:
            source["column"] = column
        if shares:
            source["share"] = shares[place]
    for given, other in (("tokenizer", "vocab_size"), ("vocab_size", "tokenizer")):
        if settings.get(given) is not None:
            raw.pop(other, None)
    raw |= {name: value for name, value in settings.items() if value is not None}
    return parse_config(CorpusConfig, raw, where="corpus build")


def _is_build(folder: Path) -> bool:
    """Return True for a built folder, False for a single corpus; raise for others."""
    from biphasic.data.building.build import RECORD

    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if _is_corpus(folder):
        return False
    if (folder / RECORD).is_file() or any(_is_corpus(folder / split) for split in _SPLITS):
        return True
    raise DataError(f"{folder}: no corpus; give a folder made by 'biphasic corpus build'")


def _is_corpus(folder: Path) -> bool:
    """Return whether this is a corpus, possibly damaged."""
    return any((folder / name).is_file() for name in ("corpus.json", "lengths.npy"))


def _parts(folder: Path) -> list[Path]:
    """Return the corpora in a folder: train and heldout, or the folder itself."""
    parts = [folder / split for split in _SPLITS if (folder / split).is_dir()]
    return parts or [folder]


def _print_build(out: Path, folders: CorpusFolders, progress: BuildProgress | None) -> None:

    for part in (folders.train, folders.heldout):
        echo(_counts(part))
    if progress is None:
        echo("already built; nothing to do")
    elif progress.num_found:
        echo(f"{progress.num_found} shards reused from an interrupted build")
    else:
        echo(f"tokenised {progress.rates()}")
    for line in _left_out(out):
        echo(line)
    echo(f"corpus: {out}")


def _left_out(folder: Path) -> Iterator[str]:
    """Yield the number of skipped documents of each source, by reason."""
    from biphasic.data.building.build import read_record

    record = read_record(folder)
    for name, counts in record["sources"].items():
        reasons = [
            f"{count:,} {reason.replace('_', ' ')}"
            for reason, count in counts["left_out"].items()
            if count
        ]
        if reasons:
            yield f"{name}: documents skipped: {', '.join(reasons)}"
    for source in record["origin"]["sources"]:
        if source.get("num_ignored"):
            yield (
                f"{source['name']}: {source['num_ignored']:,} files skipped (hidden, or not a "
                "text suffix)"
            )


def _counts(corpus: Path) -> str:
    from biphasic.data.corpus import DETAILS, REMEDY
    from biphasic.files import read_json

    details = read_json(corpus / DETAILS, remedy=REMEDY)
    return (
        f"{corpus.name}: {details['num_documents']:,} documents, {details['num_tokens']:,} tokens"
    )


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
        f"  rows of {max_seqlen}: {100 * summary.fill_rate:.1f} % full "
        f"(over {summary.fill_rows:,} rows)"
    )
    yield f"  exact duplicates: {summary.duplicates:,}"
    yield from _describe_sources(summary)
    yield from _describe_text(summary)


def _describe_sources(summary: CorpusSummary) -> Iterator[str]:
    for name, counts in summary.sources[:_MOST_SOURCES]:
        documents, tokens = counts["documents"], counts["tokens"]
        share = 100 * tokens / summary.tokens
        yield f"  source {name}: {documents:,} documents, {tokens:,} tokens ({share:.1f} %)"
        for license_name, documents in counts["licenses"].items():
            yield f"    {license_name}: {documents:,} documents"
    if len(summary.sources) > _MOST_SOURCES:
        yield f"  and {len(summary.sources) - _MOST_SOURCES} more sources"


def _describe_text(summary: CorpusSummary) -> Iterator[str]:
    if summary.is_other_tokenizer:
        yield "  WARNING: built with another tokenizer than the one next to it; cannot show text"
    if summary.mask_document is not None:
        yield f"  WARNING: document {summary.mask_document} contains the mask token"
    for token, count in summary.special_in_text.items():
        yield f"  special token {token} in the text: {count:,} times"
    for sample in summary.samples:
        text = " ".join(sample.text.split())
        yield f"  document {sample.document} ({sample.id}, {sample.tokens:,} tokens): {text}"
