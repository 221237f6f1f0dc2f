"""The data of a recipe: corpora, tokenizer, and the pretrained model that it may start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from biphasic.data.corpus import Corpus
from biphasic.data.pairs.folder import Pairs
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.model.loading.hub import LocalModel
from biphasic.objectives.supervision import Vocabulary
from biphasic.training.lineage import DataFingerprint


@dataclass(frozen=True)
class TrainingData:
    """Everything outside a recipe that determines its states."""

    corpus: Corpus  # training text
    heldout: Corpus
    tokenizer: TextTokenizer
    # The pretrained model that the recipe starts from; None for a new one.
    pretrained: LocalModel | None = None
    corpora: Mapping[Path, Corpus] = field(default_factory=dict)  # text of single phases, by folder
    # Pairs of texts that phases read, by folder.
    pairs: Mapping[Path, Pairs] = field(default_factory=dict)

    @property
    def fingerprint(self) -> DataFingerprint:
        """The fields that identities depend on."""
        return DataFingerprint(
            corpus_hash=self.corpus.content_hash,
            tokenizer_sha256=self.tokenizer.sha256,
            vocab_size=self.tokenizer.vocab_size,
            pretrained=self.pretrained.identity if self.pretrained else None,
            corpora={
                str(path): data.content_hash
                for path, data in (*self.corpora.items(), *self.pairs.items())
            },
            fused=self.pretrained is not None and self.pretrained.is_fused,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's properties that objectives need."""
        return vocabulary_of(self.tokenizer)


def vocabulary_of(tokenizer: TextTokenizer) -> Vocabulary:
    """Return the properties of a tokenizer that objectives need."""
    special_ids = frozenset(tokenizer.special_ids.values())
    return Vocabulary(tokenizer.vocab_size, tokenizer.mask_id, special_ids, tokenizer)
