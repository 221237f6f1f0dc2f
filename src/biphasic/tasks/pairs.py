"""Builds a folder of pairs: reads sources, leaves out evaluation texts, removes duplicates.

Each source becomes a part, beside the folder until it is finished, so an interrupted build resumes
with the next source.
"""

from __future__ import annotations

import heapq
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from biphasic.config import Config
from biphasic.data.pairs import Pair, Pairs, write_pairs, written_once
from biphasic.data.text.files import SourceDocument
from biphasic.data.text.near_duplicates import COMPARISON_VERSION
from biphasic.data.text.source import SourceContext
from biphasic.data.text.sources import (
    AnySource,
    HubSplit,
    SourceConfig,
    asked_once,
    parse_hub,
    pinned,
    read_documents,
    source_origin,
)
from biphasic.errors import ConfigError, DataError, repeated
from biphasic.files import digest, expanded, file_sha256, read_json, remove_partials, write_json
from biphasic.locks import Say
from biphasic.plugins import keep_files, short_name
from biphasic.rows import Row
from biphasic.seeds import stream, uniforms
from biphasic.store import complete_folder, is_complete, sealed_in
from biphasic.tasks.decontamination import Decontamination, EvaluationTask
from biphasic.tasks.folder import load_task
from biphasic.tasks.inputs import Input, open_input
from biphasic.tasks.rows import read_qrels, read_texts
from biphasic.tasks.source import prepare_task, told_apart

BUILD_VERSION = 1  # increase by hand whenever the same settings would give other pairs
_PAIRS, _COUNTS = "pairs.jsonl", "counts.json"


class PairsConfig(Config):
    """What pairs are made from: the arguments of `biphasic.pairs.build`, which describes them."""

    tables: tuple[str, ...]
    tasks: tuple[str, ...]
    documents: tuple[AnySource, ...]
    per_document: PositiveInt
    max_weak_pairs: PositiveInt | None
    seed: NonNegativeInt
    against: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Source:
    name: str
    origin: dict[str, Any]
    read: Callable[[], Iterable[Pair]]
    corpus: str = ""
    """Hash of the documents, if these may be those of an evaluation task."""


def build_pairs(
    config: PairsConfig, folder: Path, *, store: Path, copies: Path | None = None, say: Say
) -> Pairs:
    """Build a folder of pairs, or find it complete; `store` keeps the tasks that are named."""
    if not (config.tables or config.tasks or config.documents):
        raise ConfigError("pairs build: give a table, --task or --documents; there is no source")
    check_folder(folder)
    prepare = lambda name: prepare_task(name, store=store, copies=copies, say=say)  # noqa: E731
    against = tuple(EvaluationTask.of(prepare(name)) for name in config.against)
    sources = [*_sources(config, prepare, copies)]
    if names := repeated(source.name for source in sources):
        raise ConfigError(f"pairs build: several sources are called {names[0]}; rename one")
    keep_files(store, config)
    compares = {"comparison": COMPARISON_VERSION} if against else {}
    origin = {
        "sources": [{"name": source.name, **source.origin} for source in sources],
        "against": [[task.name, task.content] for task in against],
        **compares,
        "build_version": BUILD_VERSION,
    }
    labels = told_apart([task.name for task in against], config.against)
    named = [replace(task, name=name) for task, name in zip(against, labels, strict=True)]

    def write(folder: Path) -> Pairs:
        work = folder.with_name(f".building-{folder.name}")
        remove_partials(work)
        parts = {
            source: work / digest([source.origin, origin["against"], compares, BUILD_VERSION])[:32]
            for source in sources
        }
        decontamination = Decontamination(named)
        try:
            for source, part in parts.items():
                if is_complete(part):
                    say(f"{source.name}: already read")
                else:
                    say(f"reading {source.name}")
                    _write_part(part, source, decontamination)
        finally:
            if not sealed_in(work):  # after an error; otherwise the next build reads them
                shutil.rmtree(work, ignore_errors=True)
        counts = {source.name: read_json(part / _COUNTS) for source, part in parts.items()}
        kept = _without_repeats(parts, counts)
        try:
            pairs = write_pairs(folder, kept, origin=origin, counts=counts)
        except DataError:  # the next build would refuse them again
            shutil.rmtree(work)
            raise
        shutil.rmtree(work)
        return pairs

    return written_once(folder, origin, write, say=say)


def check_folder(folder: Path) -> None:
    """Refuse a folder of something else, before any work."""
    if not folder.exists() or is_complete(folder):
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is a file, not a folder; choose another folder")
    if other := min((path.name for path in folder.iterdir()), default=None):
        raise ConfigError(
            f"{folder}: contains {other}, but no finished pairs; choose another folder"
        )


def _sources(
    config: PairsConfig, prepare: Callable[[str], Path], copies: Path | None
) -> Iterator[_Source]:
    resolve = asked_once()
    for table in config.tables:
        hub = None
        if table.startswith("hf:"):
            hub = parse_hub(table).pinned(copies, resolve)
            origin = hub.fingerprint(copies)
        else:
            origin = {"sha256": file_sha256(_open_table(table).path)}
        read = partial(table_pairs, table, hub=hub, copies=copies)
        yield _Source(Path(table).name, origin, read)
    for name in config.tasks:
        folder = prepare(name)
        if not (folder / "qrels" / "train.tsv").is_file():
            raise ConfigError(f"--task {name}: no retrieval task with a training split")
        task, corpus = load_task(folder).info, file_sha256(folder / "corpus.jsonl")
        content = {"task": task.name, "content": task.sha256}
        yield _Source(task.name, content, partial(_task_pairs, folder), corpus)
    drawn: dict[str, Any] = {
        "seed": config.seed, "per_document": config.per_document, "most": config.max_weak_pairs
    }  # fmt: skip
    context = SourceContext(copies=copies)
    for source in config.documents:
        fixed = pinned(source, copies, resolve)
        origin = {"documents": source_origin(fixed, context), **drawn}
        path = source.path if isinstance(source, SourceConfig) else None
        name = short_name(source.source) if path is None else path.name
        read = lambda fixed=fixed: document_pairs(read_documents(fixed, context), **drawn)  # noqa: E731
        yield _Source(name, origin, read)


def _write_part(part: Path, source: _Source, decontamination: Decontamination) -> None:
    """Write the pairs of a source without texts of evaluation tasks, and their counts."""
    matches: Counter[str] = Counter()
    num_read = 0
    with complete_folder(part) as partial:
        with (partial / _PAIRS).open("w", encoding="utf-8") as lines:
            for pair in source.read():
                num_read += 1
                found = decontamination.matches(
                    (pair.query, pair.positive, *pair.negatives), own_corpus=source.corpus
                )
                matches.update(f"{task}: {match}" for task, match in found.items())
                if found:
                    matches["all"] += 1
                else:
                    lines.write(json.dumps(asdict(pair)) + "\n")
        counts = {"read": num_read, "judged": matches.pop("all", 0), "by_task": dict(matches)}
        write_json(partial / _COUNTS, counts)


def _without_repeats(
    parts: Mapping[_Source, Path], counts: dict[str, dict[str, Any]]
) -> Iterator[Pair]:
    """Yield the pairs of all parts whose texts occur in no earlier pair; complete the counts."""
    seen: set[str] = set()
    for source, part in parts.items():
        own = counts[source.name]
        own |= {"repeated": 0, "kept": 0}
        with (part / _PAIRS).open(encoding="utf-8") as lines:
            for value in map(json.loads, lines):
                key = digest([value["query"], value["positive"]])
                if key in seen:
                    own["repeated"] += 1
                    continue
                seen.add(key)
                own["kept"] += 1
                texts = (value["query"], value["positive"], tuple(value["negatives"]))
                yield Pair(*texts, tuple(value["scores"]), value["source"] or source.name)


_QUERIES = ("query", "anchor")
_NEGATIVES = ("negatives", "negative")
_OPTIONAL = (*_NEGATIVES, "scores")
_NUMBERED = ("negative_0", "negative_1", "negative_2")  # sentence-transformers has one per column
_HEADING_WORDS, _FEWEST_WORDS, _MOST_WORDS = 12, 20, 400
_WORD = re.compile(r"\w+")


def _open_table(source: str) -> Input:
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
    source: str, *, hub: HubSplit | None = None, copies: Path | None = None
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
        rows = _open_table(source).rows()
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


def _task_pairs(folder: Path) -> Iterator[Pair]:
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
