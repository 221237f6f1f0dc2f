"""Retrieval files in the layout of BEIR: documents, queries and judgements.

Reference: Thakur et al. 2021, arXiv:2104.08663.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from biphasic.errors import DataError
from biphasic.rows import plain_name, rows

_HEADER = ("query-id", "corpus-id", "score")
_MOST_DIGITS = 9
Qrels = dict[str, dict[str, int]]


def read_texts(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each document or query."""
    seen: set[str] = set()
    for row in rows(path):
        if "_id" not in row.value:
            raise row.lacks("_id")
        key = plain_name(row.id("_id"))
        if key in seen:
            raise row.error(f"the id '{key}' is repeated")
        seen.add(key)
        yield key, row.text("title", ""), row.text("text")
    if not seen:
        raise DataError(f"{path}: the file is empty")


def read_qrels(path: Path, *, queries: Container[str], corpus: Container[str]) -> Qrels:
    """Read the judgements of one split: scores by document, for each judged query."""
    qrels: Qrels = {}
    row = None
    for row in rows(path, "tsv"):
        if (*row.value,) != _HEADER:
            break
        query, document = (plain_name(row.value[name]) for name in _HEADER[:2])
        score = row.value["score"]
        if not (score.isascii() and score.isdecimal() and len(score) <= _MOST_DIGITS):
            raise row.error(f"expected a score of 0 or more as a whole number, not {score!r}")
        if query not in queries:
            raise row.error(f"unknown query '{query}'; it is not in the queries")
        if document not in corpus:
            raise row.error(f"unknown document '{document}'; not in the corpus")
        earlier = qrels.setdefault(query, {}).setdefault(document, int(score))
        if earlier != int(score):
            raise row.error(
                f"query '{query}' and document '{document}' have the score {earlier} already"
            )
    if row is None or (*row.value,) != _HEADER:
        names = ", ".join(_HEADER)
        raise DataError(f"{path}:1: the header must be {names}, tab-separated, above judgements")
    if not any(score for judged in qrels.values() for score in judged.values()):
        raise DataError(f"{path}: the split is empty (no relevant document)")
    return qrels


def write_qrels(path: Path, judgements: Iterable[tuple[str, str, int]]) -> None:
    """Write the judgements of one split: query, document and score."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write("\t".join(_HEADER) + "\n")
        for query, document, score in judgements:
            stream.write(f"{query}\t{document}\t{score}\n")
