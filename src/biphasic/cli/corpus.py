"""The `biphasic corpus` commands: build, inspect, verify, merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biphasic.cli.options import Commands, Copies, Out, Positive, Quiet, echo

corpus_app = Commands("Build and inspect corpora for pretraining.")

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
    from biphasic.api.corpus import build

    built = build(
        sources or (),
        out=out,
        spec=spec,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        column=column,
        shares=shares or (),
        max_tokens=max_tokens,
        deduplicate=deduplicate,
        heldout_fraction=heldout_fraction,
        copies=copies,
        workers=workers,
        quiet=quiet,
    )
    echo(str(built))


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
    from biphasic.api.corpus import inspect

    inspected = inspect(folder, max_seqlen=max_seqlen, samples=samples)
    for note in inspected.notes:
        echo(note, err=True)
    echo(str(inspected))


@corpus_app.command("verify")
def corpus_verify(folder: Folder) -> None:
    """Verify the hashes and the consistency of a corpus.

    The exit code is 2 if it is damaged.
    """
    from biphasic.api.corpus import verify

    echo(str(verify(folder)))


@corpus_app.command("merge")
def corpus_merge(folders: list[Path], out: Out) -> None:
    """Merge corpora that have the same tokenizer.

    Training splits are merged with training splits, held-out splits with held-out splits.

    Args:
        folders: Folders made with one tokenizer, in the order to merge.
        out: Folder for the merged corpus.
    """
    from biphasic.api.corpus import merge

    echo(str(merge(folders, out)))
