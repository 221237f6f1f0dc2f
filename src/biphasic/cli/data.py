"""The `biphasic corpus`, `pairs` and `tokenizer` commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from biphasic.api import corpus, pairs, tokenizer
from biphasic.cli.command import Commands
from biphasic.cli.output import echo

if TYPE_CHECKING:
    from biphasic.data.building.inspect import InspectedCorpus
    from biphasic.shown import Findings

corpus_app = Commands("Build and inspect corpora for pretraining.")
corpus_app.prints("build", corpus.build)


@corpus_app.calls("inspect", corpus.inspect)
def _inspect(inspected: InspectedCorpus) -> None:
    for note in inspected.notes:
        echo(note, err=True)
    echo(str(inspected))


@corpus_app.calls("verify", corpus.verify)
def _verify(intact: Findings) -> None:
    """The exit code is 2 if it is damaged."""
    echo(str(intact))


corpus_app.prints("merge", corpus.merge)

pairs_app = Commands("Build and inspect pairs of texts for contrastive training.")
pairs_app.prints("build", pairs.build)
pairs_app.prints("mine", pairs.mine)
pairs_app.prints("teach", pairs.teach)
pairs_app.prints("inspect", pairs.inspect)

tokenizer_app = Commands("Train tokenizers and check them.")
tokenizer_app.prints("train", tokenizer.train)
tokenizer_app.prints("check", tokenizer.check)
