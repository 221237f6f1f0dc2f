"""The `biphasic tokenizer` commands: train and check tokenizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from biphasic.api.tokenizer import check, train
from biphasic.cli.command import Commands, command
from biphasic.cli.options import echo

if TYPE_CHECKING:
    from biphasic.api.results.data import CheckedTokenizer, TrainedTokenizer

tokenizer_app = Commands("Train tokenizers and check them.")

_LEAST_VOCABULARY = 300  # 256 bytes, 4 special tokens, and some merges


@tokenizer_app.command("train")
@command(
    train,
    sources=typer.Argument(metavar="SOURCE"),
    vocab_size=typer.Option(min=_LEAST_VOCABULARY, max=1 << 17),
)
def _train(trained: TrainedTokenizer) -> None:
    echo(str(trained))


@tokenizer_app.command("check")
@command(check, tokenizer=typer.Argument(metavar="NAME_OR_FOLDER"))
def _check(checked: CheckedTokenizer) -> None:
    echo(str(checked))
