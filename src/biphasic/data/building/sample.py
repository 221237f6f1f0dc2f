"""A bounded sample of training text for training a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from biphasic.data.building.blend import MOST_BYTES_PER_TOKEN, token_quotas
from biphasic.data.building.config import CorpusConfig
from biphasic.data.building.selection import Selection, digest_of
from biphasic.data.text.sources import read_documents
from biphasic.errors import DataError

SAMPLE_BYTES = 100_000_000
"""Maximum text for training a tokenizer."""
CONSIDERED_BYTES = 1_000_000_000
"""Maximum text that the sample is drawn from: the beginning of each source."""


def sample_training_text(config: CorpusConfig, folder: Path) -> list[str]:
    """Draw text from the training documents of a corpus's sources, by their shares.

    `folder` is for temporary files.

    Raises:
        DataError: There is no training document.
    """
    sample = TextSample(SAMPLE_BYTES)
    num_bytes = CONSIDERED_BYTES
    if config.max_tokens is not None:
        num_bytes = min(num_bytes, config.max_tokens * MOST_BYTES_PER_TOKEN)
    quotas = token_quotas([source.share or 1.0 for source in config.sources], num_bytes)
    with Selection(config, folder) as selection:
        for source, quota in zip(config.sources, quotas, strict=True):
            documents = read_documents(source, libraries=config.libraries, copies=config.hub_copies)
            texts = (doc.text for doc, split in selection.select(documents) if split == "train")
            sample.extend(islice(texts, config.max_documents), max_bytes=quota)
    if not (texts := sample.texts()):
        raise DataError("there is no training document to train a tokenizer on")
    return texts


_MOST_OF_ONE = 16
"""A single document gives at most one part in this many of the sample."""


class TextSample:
    """Keeps a sample of texts chosen by hash, in their original order; it thins as more are added.

    Only the beginning of a long text is considered, as it could displace all others. The sample
    depends only on the texts; all are kept while they fit.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start empty; `max_bytes` counts UTF-8."""
        self._max_bytes = max_bytes
        self._kept: list[tuple[float, str]] = []
        self._num_bytes = 0
        self._rate = 1.0

    def extend(self, texts: Iterable[str], *, max_bytes: int) -> None:
        """Add texts, at most `max_bytes` of them."""
        for text in texts:
            # The other half of the digest selects held-out texts; the two must be independent.
            place = int.from_bytes(digest_of(text)[8:], "big") / 2**64
            considered, size = _beginning(text, self._max_bytes // _MOST_OF_ONE)
            max_bytes -= size
            if place < self._rate:
                self._kept.append((place, considered))
                self._num_bytes += size
            while self._num_bytes > self._max_bytes:
                self._rate /= 2
                self._kept = [(place, text) for place, text in self._kept if place < self._rate]
                self._num_bytes = sum(len(text.encode()) for _, text in self._kept)
            if max_bytes <= 0:
                return

    def texts(self) -> list[str]:
        """Return the sample."""
        return [text for _, text in self._kept]


def _beginning(text: str, max_bytes: int) -> tuple[str, int]:
    """Return the beginning of a text that fits, and its size in bytes."""
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text, len(encoded)
    cut = encoded[:max_bytes].decode(errors="ignore")
    return cut, len(cut.encode())
