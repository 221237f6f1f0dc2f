"""The `biphasic tokenizer` commands: train and check tokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from biphasic.cli.command import Commands
from biphasic.cli.options import Copies, Out, echo
from biphasic.errors import ConfigError, DataError

tokenizer_app = Commands("Train tokenizers and check them.")

_LEAST_VOCABULARY = 300  # 256 bytes, 4 special tokens, and some merges


@tokenizer_app.command("train")
def train_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="File, folder, builtin:pydocs, or hf:OWNER/NAME?name=CONFIG&split=SPLIT.",
        ),
    ],
    out: Out,
    vocab_size: Annotated[int, typer.Option(min=_LEAST_VOCABULARY, max=1 << 17)] = 8192,
    column: str | None = None,
    hub_copies: Copies = None,
) -> None:
    """Train a byte-level BPE tokenizer on all text of the sources.

    Args:
        out: Output folder.
        vocab_size: Vocabulary size.
        column: Column or JSON key of the text.
    """
    from biphasic.config import parse_config
    from biphasic.data.text.sources import SourceConfig, read_documents, source_origin
    from biphasic.data.tokens.tokenizer import train_tokenizer, write_tokenizer
    from biphasic.files import digest, is_complete, verify_folder
    from biphasic.locks import sole_writer

    if out.exists() and not is_complete(out):
        raise ConfigError(f"--out {out}: already exists; choose another folder, or delete it")
    shared = {} if column is None else {"column": column}
    parsed = [
        parse_config(SourceConfig, {"source": source, **shared}, where="SOURCE")
        for source in sources
    ]
    origins = [source_origin(source, copies=hub_copies) for source in parsed]
    made_from = digest({"sources": origins, "vocab_size": vocab_size})
    if out.exists():
        manifest = verify_folder(out, remedy="delete this folder and run again")
        if manifest.get("made_from") != made_from:
            raise ConfigError(
                f"--out {out}: already exists, made from other sources or settings; "
                "choose another folder, or delete it"
            )
        echo(f"tokenizer: {out} (already made from the same sources)")
        return
    num_documents = num_bytes = 0

    def texts() -> Iterator[str]:
        nonlocal num_documents, num_bytes
        for source in parsed:
            for document in read_documents(source, copies=hub_copies):
                if document.split != "heldout":
                    num_documents += 1
                    num_bytes += len(document.text.encode())
                    yield document.text

    with sole_writer(out):
        tokenizer = train_tokenizer(texts(), vocab_size=vocab_size)
        if not num_bytes:
            raise DataError(f"{', '.join(sources)}: no text to train on")
        write_tokenizer(tokenizer, out, made_from=made_from)
    echo(f"read {num_documents:,} documents, {num_bytes / 1e6:,.1f} MB of text")
    fewer = f", not {vocab_size:,}: the text has no more pairs to merge"
    is_full = tokenizer.vocab_size == vocab_size
    echo(f"vocabulary: {tokenizer.vocab_size:,} entries{'' if is_full else fewer}")
    echo(f"tokenizer: {out}")


@tokenizer_app.command("check")
def check_command(
    tokenizer: Annotated[str, typer.Argument(metavar="NAME_OR_FOLDER")], revision: str | None = None
) -> None:
    """Print a tokenizer's special tokens and vocabulary size.

    Includes the mask token that a corpus would use, and why.

    Args:
        tokenizer: Folder, or hub id of a model.
        revision: Branch, tag or commit on the hub. Default: the newest.
    """
    from biphasic.data.building.mask_token import with_mask_token
    from biphasic.data.tokens.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer, revision=revision)
    for role, token in loaded.special_tokens.items():
        if role != "mask":
            echo(f"{role:<13} {token} ({loaded.special_ids[role]})")
    masked, reason = with_mask_token(loaded)
    echo(f"{'mask':<13} {masked.special_tokens['mask']} ({masked.mask_id}): {reason}")
    num_entries = masked.vocab_size
    echo(f"{'vocabulary':<13} {num_entries:,} ids")
    echo(f"{'bytes per id':<13} {2 if num_entries <= 1 << 16 else 4}")
