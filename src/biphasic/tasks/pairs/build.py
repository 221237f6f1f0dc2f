"""Builds a folder of pairs: reads sources, leaves out evaluation texts, removes duplicates.

Each source becomes a part, beside the folder until it is finished, so an interrupted build resumes
with the next source.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from biphasic.config import Config
from biphasic.data.pairs.folder import Pair, Pairs, write_pairs, written_once
from biphasic.data.text.near_duplicates import COMPARISON_VERSION
from biphasic.data.text.source import SourceContext
from biphasic.data.text.sources import (
    AnySource,
    SourceConfig,
    asked_once,
    parse_hub,
    pinned,
    read_documents,
    source_origin,
)
from biphasic.errors import ConfigError, DataError, repeated
from biphasic.files import digest, file_sha256, read_json, remove_partials, write_json
from biphasic.locks import Say
from biphasic.plugins import keep_files, short_name
from biphasic.store import complete_folder, complete_names, is_complete
from biphasic.tasks.folder import load_task
from biphasic.tasks.pairs.decontamination import Decontamination, EvaluationTask
from biphasic.tasks.pairs.sources import document_pairs, open_table, table_pairs, task_pairs
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
            if not complete_names(work):  # after an error; otherwise the next build reads them
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
            origin = {"sha256": file_sha256(open_table(table).path)}
        read = partial(table_pairs, table, hub=hub, copies=copies)
        yield _Source(Path(table).name, origin, read)
    for name in config.tasks:
        folder = prepare(name)
        if not (folder / "qrels" / "train.tsv").is_file():
            raise ConfigError(f"--task {name}: no retrieval task with a training split")
        task, corpus = load_task(folder).info, file_sha256(folder / "corpus.jsonl")
        content = {"task": task.name, "content": task.sha256}
        yield _Source(task.name, content, partial(task_pairs, folder), corpus)
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
