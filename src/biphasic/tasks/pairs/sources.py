"""Sources of pairs: tables, training splits of retrieval tasks, and documents."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from biphasic.data.pairs.folder import Pair
from biphasic.data.text.files import SourceDocument
from biphasic.data.text.sources import HubSource, parse_hub
from biphasic.errors import DataError
from biphasic.files import expanded
from biphasic.rows import Row
from biphasic.seeds import stream, uniforms
from biphasic.tasks.inputs import Input, open_input
from biphasic.tasks.rows.beir import read_qrels, read_texts

_QUERIES = ("query", "anchor")
_NEGATIVES = ("negatives", "negative")
_OPTIONAL = (*_NEGATIVES, "scores")
_NUMBERED = ("negative_0", "negative_1", "negative_2")  # sentence-transformers has one per column
_HEADING_WORDS, _FEWEST_WORDS, _MOST_WORDS = 12, 20, 400
_WORD = re.compile(r"\w+")


def open_table(source: str) -> Input:
    """Find a file of pairs."""
    if expanded(source).is_dir():
        raise DataError(f"{source}: a folder, not a table of pairs; name its files")
    table = open_input(source)
    if table.is_stream:
        raise DataError(f"{source}: can be read only once; write it to a file")
    if table.format == "txt":
        raise DataError(f"{source}: no table of pairs; use .jsonl, .csv, .tsv, .parquet or hf:")
    return table


def table_pairs(
    source: str, *, hub: HubSource | None = None, copies: Path | None = None
) -> Iterator[Pair]:
    """Yield the pairs of a file or a hub dataset, in order; `hub` may name its commit."""
    # Columns are `query` (or `anchor`), `positive`, and optionally `negatives` or `negative`, and
    # `scores` of the positive and each negative.
    path = Path(source)
    if source.startswith("hf:"):
        table = (hub or parse_hub(source)).open(copies)
        values = table.read(["positive"], optional=(*_QUERIES, *_OPTIONAL, *_NUMBERED))
        rows = (Row(path, number, value) for number, value in enumerate(values, start=1))
    else:
        rows = open_table(source).rows()
    yield from (_pair_of(row, source=path.name) for row in rows)


def _pair_of(row: Row, *, source: str) -> Pair:
    if numbered := next((name for name in _NUMBERED if name in row.value), None):
        raise row.error(
            f"column '{numbered}': numbered negatives are not read; write them as one list, "
            "'negatives', or remove the columns"
        )
    for both in (_QUERIES, _NEGATIVES):
        if all(row.value.get(name) is not None for name in both):
            raise row.error(f"has both '{both[0]}' and '{both[1]}'; remove one of the columns")
    name = next((name for name in _QUERIES if name in row.value), _QUERIES[0])
    query, positive = row.text(name).strip(), row.text("positive").strip()
    negatives: tuple[str, ...] = ()
    if row.value.get("negatives") is not None:
        negatives = tuple(text.strip() for text in row.items("negatives", str))
    elif row.value.get("negative") is not None:
        negatives = (row.text("negative").strip(),)
    for field, texts in ((name, [query]), ("positive", [positive]), ("negatives", negatives)):
        if not all(texts):
            raise row.error(f"'{field}' is empty; remove the pair or the text")
    if query == positive:
        raise row.error(f"'{name}' and 'positive' are the same text")
    if {query, positive} & {*negatives}:
        raise row.error(f"a negative is the same text as its '{name}' or 'positive'")
    scores = row.value.get("scores")
    if scores is None:
        return Pair(query, positive, negatives, source=source)
    if not isinstance(scores, list):
        raise row.error("'scores' must be a list of numbers")
    if len(scores) != 1 + len(negatives):
        raise row.error(f"{len(scores)} scores for a positive and {len(negatives)} negatives")
    numbers = (replace(row, value={"scores": score}).real("scores") for score in scores)
    return Pair(query, positive, negatives, tuple(numbers), source)


def task_pairs(folder: Path) -> Iterator[Pair]:
    """Yield the training pairs of a retrieval task's folder: queries and relevant documents."""
    texts: Mapping[str, str] = {
        key: f"{title} {text}".strip() for key, title, text in read_texts(folder / "corpus.jsonl")
    }
    queries = {key: text for key, _, text in read_texts(folder / "queries.jsonl")}
    qrels = read_qrels(folder / "qrels" / "train.tsv", queries=queries, corpus=texts)
    for query, judged in qrels.items():
        for document, score in judged.items():
            if score > 0:
                yield Pair(queries[query], texts[document])


def document_pairs(
    documents: Iterable[SourceDocument], *, seed: int, per_document: int, most: int | None
) -> list[Pair]:
    """Draw weak pairs: a heading and its paragraph, a paragraph and the next."""
    # At most `per_document` of each document, and `most` of all, are drawn at random; the draw from
    # a document depends on the seed and its number alone.

    def drawn() -> Iterator[tuple[float, int, int, Pair]]:
        for number, document in enumerate(documents):
            candidates = list(_weak_pairs(document.text))
            keys = uniforms(stream("weak pairs", seed, number), len(candidates)).tolist()
            ranked = sorted(zip(keys, range(len(keys)), candidates, strict=True))[:per_document]
            for key, place, (query, positive, sort) in ranked:
                if query != positive:  # a repeated paragraph teaches nothing
                    yield key, number, place, Pair(query, positive, source=sort)

    kept = list(drawn()) if most is None else heapq.nsmallest(most, drawn(), key=lambda d: d[:3])
    return [pair for *_, pair in sorted(kept, key=lambda d: d[1:3])]


def _weak_pairs(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield query, positive and their sort, of all paragraphs of a text that are long enough."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    for first, second in pairwise(paragraphs):
        if not _is_paragraph(second):
            continue
        if _is_heading(first):
            yield first.lstrip("# "), second, "heading and paragraph"
        elif _is_paragraph(first):
            yield first, second, "paragraph and next"


def _is_heading(text: str) -> bool:
    is_short = 0 < len(_WORD.findall(text)) <= _HEADING_WORDS
    return is_short and "\n" not in text and text[-1] not in ".,:;!?"


def _is_paragraph(text: str) -> bool:
    return _FEWEST_WORDS <= len(_WORD.findall(text)) <= _MOST_WORDS
