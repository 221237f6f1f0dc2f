"""Builds a folder of pairs: reads sources, leaves out evaluation texts, removes duplicates.

Each source becomes a part, beside the folder until it is finished, so an interrupted build resumes
with the next source.

Of texts of evaluation tasks, near-duplicates are left out, too: two texts of which at least half of
the shingles of either occur in the other (`data/text/near_duplicates.py`). Texts shorter than a
shingle, or of symbols alone, are compared whole.
"""

from __future__ import annotations

import heapq
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from biphasic.config import Config, parse_config
from biphasic.data.building.selection import NO_TASKS, TaskTexts
from biphasic.data.pairs import Pair, Pairs, write_pairs, written_once
from biphasic.data.text.near_duplicates import (
    COMPARISON_VERSION,
    NEAR_DUPLICATE_SHARE,
    ShingleIndex,
    Shingler,
)
from biphasic.data.text.source import SourceContext, SourceDocument
from biphasic.data.text.sources import (
    AnySource,
    HubSplit,
    SourceConfig,
    asked_once,
    at_commit,
    parse_hub,
    read_documents,
    source_origin,
)
from biphasic.data.text.words import words_in
from biphasic.errors import ConfigError, DataError, repeated
from biphasic.files import digest, expanded, file_sha256, read_json, remove_partials, write_json
from biphasic.locks import Say
from biphasic.plugins import keep_files, short_name
from biphasic.rows import Row, rows
from biphasic.seeds import stream, uniforms
from biphasic.store import complete_folder, is_complete, sealed_in
from biphasic.tasks.folder import load_task
from biphasic.tasks.inputs import Input, open_input
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.labels_and_qrels import read_qrels, read_texts
from biphasic.tasks.records import SPLITS, ExampleTask, RetrievalTask
from biphasic.tasks.source import find_source, prepare_task, told_apart

Match = Literal["exact", "near"]


class NearTexts:
    """A collection of texts that others can be compared with."""

    def __init__(self, texts: Iterable[str], shingler: Shingler) -> None:
        shingles = [shingler.with_symbols(text) for text in texts]
        self._sizes = np.array([len(shingle) for shingle in shingles], dtype=np.int64)
        owners = np.repeat(np.arange(len(shingles)), self._sizes)
        joined = np.concatenate([np.zeros(0, np.uint64), *shingles])
        order = np.argsort(joined, kind="stable")
        self._shingles, self._owners = joined[order], owners[order]

    def match(self, shingles: NDArray[np.uint64]) -> Match | None:
        """Return how a text, by its shingles, matches one of the collection."""
        first = np.searchsorted(self._shingles, shingles)
        last = np.searchsorted(self._shingles, shingles, side="right")
        matching = first < last
        bounds = zip(first[matching], last[matching], strict=True)
        hits = [self._owners[start:end] for start, end in bounds]
        owners, shared = np.unique(np.concatenate([np.zeros(0, int), *hits]), return_counts=True)
        if not len(owners):
            return None
        sizes = self._sizes[owners]
        if ((shared == sizes) & (shared == len(shingles))).any():
            return "exact"
        # Of the shorter of both: a text that contains another one is near it, however long it is.
        is_near = shared >= NEAR_DUPLICATE_SHARE * np.minimum(sizes, len(shingles))
        return "near" if is_near.any() else None


@dataclass(frozen=True)
class EvaluationTask:
    """The texts of a task that a model is scored on."""

    name: str  # name of the task
    content: str  # hash of its examples, and which of their fields are compared one by one
    corpus: str  # hash of the file of its documents; empty for none
    # What a model reads of the examples of validation and test splits, and the texts that templates
    # join: a short one is not found in the joined text.
    inputs: tuple[str, ...]
    documents: tuple[str, ...] = ()  # what retrieval searches; none for other kinds

    @classmethod
    def of(cls, folder: Path) -> EvaluationTask:
        """Read a task folder."""
        task = load_task(folder)
        content, corpus, documents = task.info.sha256, "", ()
        inputs = [*chain.from_iterable(_examples(folder, task, SPLITS[1:]))]
        if isinstance(task, RetrievalTask):
            path = folder / "corpus.jsonl"
            corpus = file_sha256(path)
            documents = tuple(f"{title} {text}".strip() for _, title, text in read_texts(path))
        elif task.template is not None or len(task.fields) > 1:
            content = f"{content}:{','.join(task.fields)}"
            inputs += _joined_texts(folder, task)
        different = tuple(dict.fromkeys(inputs))
        return cls(task.info.name, content, corpus, different, documents)


def _examples(
    folder: Path, task: ExampleTask | RetrievalTask, splits: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Yield what a model reads of each example of some splits; of retrieval, the queries."""
    if isinstance(task, RetrievalTask):  # without the prompts of the kind
        judged = {query for split in splits for query in task.qrels.get(split, ())}
        texts = read_texts(folder / "queries.jsonl")
        yield from ((text,) for key, _, text in texts if key in judged)
    else:
        examples = KINDS[task.info.kind].examples
        for sample in chain.from_iterable(examples.inputs(task, split) for split in splits):
            yield (sample,) if isinstance(sample, str) else sample


def _joined_texts(folder: Path, task: ExampleTask) -> Iterator[str]:
    """Yield the texts that the template of a task joins, of validation and test splits."""
    for split in SPLITS[1:]:
        if split in task.splits:
            for row in rows(folder / f"{split}.jsonl"):
                yield from map(row.text, task.fields)


class Decontamination:
    """Finds pairs with a text that is in an evaluation task, or nearly."""

    def __init__(self, tasks: Iterable[EvaluationTask]) -> None:
        self._shingler = shingler = Shingler()
        self._collections = [
            (task, NearTexts(task.inputs, shingler), NearTexts(task.documents, shingler))
            for task in tasks
        ]

    def matches(self, texts: Iterable[str], *, own_corpus: str = "") -> Mapping[str, Match]:
        """Return the tasks that one of some texts matches, and how."""
        # `own_corpus` is the hash of documents that may occur: a training split of retrieval shares
        # them with its test split.
        shingles = [self._shingler.with_symbols(text) for text in texts]
        matches: dict[str, Match] = {}
        for task, inputs, documents in self._collections:
            collections = (
                [inputs] if own_corpus and task.corpus == own_corpus else [inputs, documents]
            )
            kinds = {collection.match(text) for collection in collections for text in shingles}
            if kinds - {None}:
                matches[task.name] = "exact" if "exact" in kinds else "near"
        return matches


def count_seen(folders: Sequence[Path], documents: Iterable[str]) -> list[int]:
    """Return the number of test examples of each task that documents hold.

    They hold an example if they hold at least half of the shingles of one of its texts, wherever
    these stand.
    """
    shingler, none = Shingler(), np.zeros(0, np.uint64)
    tasks = [
        [
            [*map(shingler.with_symbols, texts)]
            for texts in _examples(folder, load_task(folder), SPLITS[2:])
        ]
        for folder in folders
    ]
    texts = chain.from_iterable(chain.from_iterable(tasks))
    known = np.unique(np.concatenate([none, *texts]))
    is_seen = np.zeros(len(known), dtype=bool)
    for document in documents:
        shingles = shingler.with_symbols(document)
        places = np.searchsorted(known, shingles)
        places[places == len(known)] = 0
        is_seen[places[known[places] == shingles]] = True
    seen = ShingleIndex([known[is_seen]])
    return [sum(any(map(seen.holds, example)) for example in examples) for examples in tasks]


def task_texts(
    sources: Sequence[str], *, store: Path, copies: Path | None, say: Callable[[str], None]
) -> TaskTexts:
    """Return the evaluation tasks of a corpus; `store` keeps them once they are loaded."""
    if not sources:
        return NO_TASKS

    found = [find_source(source, copies=copies) for source in sources]

    def load() -> Callable[[str], bool]:
        folders = [prepare_task(task, store=store, say=say) for task in found]
        tasks = Decontamination(map(EvaluationTask.of, folders))
        return lambda text: bool(tasks.matches((text,)))

    return TaskTexts(tuple((task.name, task.key) for task in found), load)


BUILD_VERSION = 2  # increase by hand whenever the same settings would give other pairs
_PAIRS, _COUNTS = "pairs.jsonl", "counts.json"


class PairsConfig(Config):
    """Settings of a folder of pairs: the arguments of `biphasic.pairs.build`."""

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
    found = {name: find_source(name, copies=copies) for name in (*config.against, *config.tasks)}
    # Two with one name are refused before any of them is fetched and read.
    labels = told_apart([found[name].settings().name for name in config.against], config.against)
    prepare = lambda name: prepare_task(found[name], store=store, say=say)  # noqa: E731
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
        parts_left = _without_repeats(parts, counts)
        try:
            pairs = write_pairs(folder, parts_left, origin=origin, counts=counts)
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
        hub = parse_config(SourceConfig, {"source": table}, where="pairs build").hub
        if hub is None:
            origin = {"sha256": file_sha256(_open_table(table).path)}
        elif hub.column:
            raise ConfigError(f"{table}: pairs have columns of their own; omit '?column='")
        else:
            hub = hub.at_commit(copies, resolve)
            origin = hub.fingerprint(copies)
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
        fixed = at_commit(source, copies, resolve)
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
                by_task = decontamination.matches(
                    (pair.query, pair.positive, *pair.negatives), own_corpus=source.corpus
                )
                matches.update(f"{task}: {match}" for task, match in by_task.items())
                if by_task:
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
                # Hashes, as the texts of all pairs together may not fit into memory.
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


def _open_table(source: str) -> Input:
    """Find a file of pairs."""
    if expanded(source).is_dir():
        raise DataError(f"{source}: a folder, not a table of pairs; name its files")
    table = open_input(source)
    # It is read twice: for its hash, and for its pairs.
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
    others = next((name for name in _NEGATIVES if row.value.get(name) is not None), "")
    for field, texts in ((name, [query]), ("positive", [positive]), (others, negatives)):
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
    numbers = (row.with_value({"scores": score}).real("scores") for score in scores)
    return Pair(query, positive, negatives, tuple(numbers), source)


def _task_pairs(folder: Path) -> Iterator[Pair]:
    """Yield the training pairs of a retrieval task's folder: queries and relevant documents."""
    # Empty texts, and queries that equal their document, are left out: tables may not hold them.
    texts: Mapping[str, str] = {
        key: f"{title} {text}".strip() for key, title, text in read_texts(folder / "corpus.jsonl")
    }
    queries = {key: text.strip() for key, _, text in read_texts(folder / "queries.jsonl")}
    qrels = read_qrels(folder / "qrels" / "train.tsv", queries=queries, corpus=texts)
    for query, judged in qrels.items():
        for document, score in judged.items():
            if score > 0 and queries[query] and texts[document] not in ("", queries[query]):
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

    # Those with the lowest random numbers: a uniform draw of all that keeps only `most` of them.
    chosen = list(drawn()) if most is None else heapq.nsmallest(most, drawn(), key=lambda d: d[:3])
    return [pair for *_, pair in sorted(chosen, key=lambda d: d[1:3])]


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
    # A short line that ends like a sentence is more often one than a heading.
    is_short = 0 < len(words_in(text)) <= _HEADING_WORDS
    return is_short and "\n" not in text and text[-1] not in ".,:;!?。，：；！？"


def _is_paragraph(text: str) -> bool:
    return _FEWEST_WORDS <= len(words_in(text)) <= _MOST_WORDS
