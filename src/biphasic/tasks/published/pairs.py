"""Training pairs of published retrieval, as documents, queries and judgements."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from biphasic.data.text.hub import HubTable
from biphasic.seeds import permutation, stream
from biphasic.tasks.published.tables import SPLIT_SEED, Row, dataset_of, select

MAX_PAIRS = 160_000
"""Maximum pairs kept: as many as 5 seeds of 1,000 steps of 32 can read."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of a query and a relevant document, possibly none.

    Equal texts share one id, made from the text: the loss must recognize a document of the batch
    that is relevant to two of its queries.
    """

    opened: HubTable | None

    def documents(self) -> Iterator[Row]:
        """Yield each document once."""
        for (key,), row in self._distinct("positive"):
            yield {"_id": key, "title": "", "text": row["positive"]}

    def queries(self) -> Iterator[Row]:
        """Yield each query once."""
        for (key,), row in self._distinct("query"):
            yield {"_id": key, "text": row["query"]}

    def qrels(self) -> Iterator[tuple[str, str, int]]:
        """Yield each pair once."""
        for (query, document), _ in self._distinct("query", "positive"):
            yield query, document, 1

    def _distinct(self, *columns: str) -> Iterator[tuple[tuple[str, ...], Row]]:
        """Yield rows whose combination of texts in some columns is new, with the texts' ids."""
        seen = set()
        for row in self.opened.read(columns) if self.opened else ():
            key = tuple(_text_id(column, row[column]) for column in columns)
            if key not in seen:
                seen.add(key)
                yield key, row


def choose_pairs(opened: HubTable, *, paper: bool) -> tuple[Pairs, Row]:
    """Keep at most `MAX_PAIRS`, chosen with a fixed seed, in published order."""
    total = len(dataset_of(opened))
    if paper or total <= MAX_PAIRS:
        return Pairs(opened), {"kept": total, "of": total}
    order = permutation(stream("published-pairs", SPLIT_SEED), total)
    kept = sorted(order[:MAX_PAIRS].tolist())
    return Pairs(select(opened, kept)), {"kept": len(kept), "of": total, "seed": SPLIT_SEED}


def _text_id(column: str, text: str) -> str:
    return f"{column}-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"
