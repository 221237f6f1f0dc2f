"""Retrieval files in the layout of BEIR: documents, queries and judgements.

Reference: Thakur et al. 2021, arXiv:2104.08663.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from biphasic.errors import DataError
from biphasic.rows import plain_name, read_lines, rows

_HEADER = "query-id\tcorpus-id\tscore"
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
    lines = read_lines(path)
    header = next(lines, (1, ""))[1].rstrip("\r\n")
    if header != _HEADER:
        names = _HEADER.replace("\t", ", ")
        raise DataError(f"{path}:1: the header must be {names}, tab-separated, not {header!r}")
    for number, line in lines:
        query, document, score = _judgement(line, where=f"{path}:{number}")
        if query not in queries:
            raise DataError(f"{path}:{number}: unknown query '{query}'; it is not in the queries")
        if document not in corpus:
            raise DataError(f"{path}:{number}: unknown document '{document}'; not in the corpus")
        if qrels.setdefault(query, {}).setdefault(document, score) != score:
            earlier = qrels[query][document]
            raise DataError(
                f"{path}:{number}: query '{query}' and document '{document}' have the score "
                f"{earlier} already"
            )
    if not any(score for judged in qrels.values() for score in judged.values()):
        raise DataError(f"{path}: the split is empty (no relevant document)")
    return qrels


def _judgement(line: str, *, where: str) -> tuple[str, str, int]:
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 3:
        raise DataError(
            f"{where}: expected query, document and score, tab-separated; found {len(fields)} "
            f"field{'s' * (len(fields) != 1)}"
        )
    query, document, score = fields
    if not (score.isascii() and score.isdecimal() and len(score) <= _MOST_DIGITS):
        raise DataError(f"{where}: expected a score of 0 or more as a whole number, not {score!r}")
    return plain_name(query), plain_name(document), int(score)


def write_qrels(path: Path, judgements: Iterable[tuple[str, str, int]]) -> None:
    """Write the judgements of one split: query, document and score."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(f"{_HEADER}\n")
        for query, document, score in judgements:
            stream.write(f"{query}\t{document}\t{score}\n")
