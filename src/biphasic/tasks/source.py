"""Turns a task name or path into a complete task folder, made once per store.

Tasks of mteb become tasks of ours: retrieval `zs`, similarity of sentences `sts`. Their scores are
records like all others, and the protocol sets how texts are read and pooled.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from biphasic.config import nearest, parse_config
from biphasic.data.text.source import is_hidden, list_files
from biphasic.errors import ConfigError, DataError, install_command, reading, repeated
from biphasic.files import digest, expanded, file_sha256, remove_partials, write_json
from biphasic.hub import quiet
from biphasic.locks import lock_work
from biphasic.store import complete_folder, is_complete
from biphasic.tasks.folder import (
    DESCRIPTION,
    TaskDescription,
    TaskFile,
    describe,
    load_task,
    load_task_file,
    own_files,
    read_description,
    task_files,
    write_task_folder,
)
from biphasic.tasks.hub_tasks import PUBLISHED, HubSource
from biphasic.tasks.kinds.registry import KINDS, known_kind, name_in_kind
from biphasic.tasks.kinds.text import AnsweredText
from biphasic.tasks.labels_and_qrels import WHOLE
from biphasic.tasks.records import SPLITS, ExampleTask, Task, TaskContent

PREFIX = "mteb:"
# By the type of a task and its main score.
_KINDS = {("Retrieval", "ndcg_at_10"): "zs", ("STS", "cosine_spearman"): "sts"}


def mteb_task(name: str, copies: Path | None) -> Any:
    """Return a task of mteb, with local data if a folder of copies is given."""
    if find_spec("mteb") is None:
        raise ConfigError(f"task '{PREFIX}{name}': {install_command('mteb')}")
    import mteb  # noqa: PLC0415 - an extra, and slow to import

    try:
        task = mteb.get_task(name)
    except KeyError:
        hint = nearest(name, [task.metadata.name for task in mteb.get_tasks()])
        raise ConfigError(f"task '{PREFIX}{name}': mteb has no such task{hint}") from None
    if copies is None:
        return task
    places = [copies / name, copies / Path(task.metadata.dataset["path"]).name]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise DataError(f"{copies}: no folder '{places[0].name}' or '{places[1].name}'")
    # Hidden ones, such as those of git and of downloads, change while the data stay the same.
    files = (path for path in list_files(folder) if not is_hidden(path, folder))
    names = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
    dataset = {
        **task.metadata.dataset, "path": str(folder.resolve()), "revision": digest(names)
    }  # fmt: skip
    metadata = task.metadata.model_copy(update={"dataset": dataset})
    # A class of its own: mteb discards an instance's metadata with its data.
    return type(name, (type(task),), {"metadata": metadata})()


def load_mteb(task: Any) -> None:
    """Read a task's data, from its copies or the hub."""
    import datasets.config  # noqa: PLC0415 - takes seconds

    before, dataset = datasets.config.HF_DATASETS_CACHE, task.metadata.dataset
    if Path(dataset["path"]).is_absolute():  # a copy, whose revision is its content
        # The library caches rows by the folder's name, and would return those of an earlier copy.
        place = Path(before) / "local-copies" / dataset["revision"][:32]
        datasets.config.HF_DATASETS_CACHE = place
    where, remedy = f"task {task.metadata.name}", "give its data with --data"
    try:
        with reading(where, DataError, remedy=remedy), quiet():
            task.load_data()
    finally:
        datasets.config.HF_DATASETS_CACHE = before


def _of_mteb(name: str, copies: Path | None) -> TaskSource:
    """Return a task from the only evaluated split of a task of mteb with one language."""
    task = cache(partial(mteb_task, name, copies))  # importing mteb takes seconds

    def settings() -> TaskDescription:
        about = task().metadata
        where, is_several = f"task '{PREFIX}{about.name}'", task().is_aggregate
        kind = None if is_several else _KINDS.get((about.type, about.main_score))
        if kind is None:
            what = "several tasks" if is_several else f"{about.type} by {about.main_score}"
            known = " and ".join(f"{type_} by {score}" for type_, score in _KINDS)
            raise ConfigError(
                f"it is {what}; studies and 'evaluate' score only {known}: run 'biphasic mteb' on "
                "it",
                about=where,
            )
        protocol = {"retrieval_corpus": "full"} if kind == "zs" else {}
        raw = {"kind": kind, "name": about.name, "protocol": protocol}
        return parse_config(TaskDescription, raw, where=where)

    def determine() -> dict[str, Any]:
        about = task().metadata
        origin = {"mteb": about.name, "revision": about.dataset["revision"]}
        return {"source": "mteb", "origin": {**origin, "version": version("mteb")}}

    def write(folder: Path) -> None:
        described, origin = settings(), determine()["origin"]
        load_mteb(task())
        with reading(f"task '{PREFIX}{described.name}'", DataError, remedy="check its data"):
            read = _similarity if described.kind == "sts" else _retrieval
            content, number = read(task(), _only_split(task()))
        origin |= {"counts": {"test": number}}
        write_task_folder(folder, described.model_copy(update={"origin": origin}), content)
        task().unload_data()

    return TaskSource(settings, determine, write, is_remote=copies is None)


def _only_split(task: Any) -> Mapping[str, Any]:
    data, splits = task.dataset, task.eval_splits
    if len(task.hf_subsets) > 1 or len(splits) > 1:
        raise DataError("it has several languages or splits; run 'biphasic mteb' on it")
    return data.get(task.hf_subsets[0], data)[splits[0]]


def _similarity(_: Any, data: Mapping[str, Any]) -> tuple[TaskContent, int]:
    columns = (data[name] for name in ("sentence1", "sentence2", "score"))
    rows = [
        {"id": str(number), "text_a": a, "text_b": b, "score": float(score)}
        for number, (a, b, score) in enumerate(zip(*columns, strict=True), start=1)
    ]
    return TaskContent(splits={"test": rows}), len(rows)


def _retrieval(task: Any, data: Mapping[str, Any]) -> tuple[TaskContent, int]:
    corpus = [
        {"_id": str(row["id"]), "title": row.get("title") or "", "text": row["text"]}
        for row in data["corpus"]
    ]
    queries = [{"_id": str(row["id"]), "text": row["text"]} for row in data["queries"]]
    own = {row["_id"] for row in corpus} & {row["_id"] for row in queries}
    is_whole = not (task.skip_first_result or (task.ignore_identical_ids and own))
    if not is_whole or data["top_ranked"] or any(row.get("instruction") for row in data["queries"]):
        raise DataError("its queries do not search the whole corpus; run 'biphasic mteb' on it")
    judged = data["relevant_docs"]
    # Sorted, as mteb reads them in another order each time, and the order is in the task's hash.
    qrels = sorted(
        (query, document, score)
        for query, documents in judged.items()
        for document, score in documents.items()
    )
    return TaskContent(corpus=corpus, queries=queries, qrels={"test": qrels}), len(judged)


_SOURCES_VERSION = 1  # increase by hand whenever the same files would give a different folder
_ACCEPTED = (
    f"KIND:FOLDER with KIND one of {', '.join(KINDS)}, a task file (.yaml), or a task folder with "
    f"{DESCRIPTION}"
)


@dataclass(frozen=True)
class TaskSource:
    """A task before its rows are read. Its functions are called when they are needed."""

    settings: Callable[[], TaskFile | TaskDescription]
    """Gives its name, kind, title and protocol."""
    determine: Callable[[], dict[str, Any]]
    """Gives everything that determines its examples."""
    write: Callable[[Path], None]
    """Reads the rows, and writes a task folder."""
    choices: tuple[str, ...] = ()
    """Random choices, human-readable."""
    hub: HubSource | None = None
    """Tables of the hub, if it is made of these."""
    is_remote: bool = False
    """Whether only the hub knows what determines it."""
    source: str = ""
    """The name or path that means it."""
    folder: Path | None = None
    """The task folder whose files are copied, if it is made of one."""

    @property
    def name(self) -> str:
        """Its name, or that of a published dataset in any kind."""
        return (self.hub.published if self.hub else "") or self.settings().name

    @property
    def key(self) -> str:
        """Name of its folder in a store."""
        with reading(f"task '{self.source}'", DataError):
            determinants = {"version": _SOURCES_VERSION, "name": self.name, **self.determine()}
            return digest(determinants)[:32]


def find_source(
    source: str, *, copies: Path | None = None, revision: str | None = None, paper: bool = False
) -> TaskSource:
    """Return the task that a name or a path means; no example is read."""
    # With `paper`, published datasets are read as in the reference study, mistakes included.
    return replace(_source(source, copies, revision, paper=paper), source=source)


def _source(source: str, copies: Path | None, revision: str | None, *, paper: bool) -> TaskSource:
    if copies is not None and not copies.is_dir():
        raise DataError(f"{copies}: no such folder (local copies for task '{source}')")
    if published := published_source(source):
        name, kind = published
        return _of_hub(
            HubSource.of_published(name, kind, copies=copies, revision=revision, paper=paper)
        )
    kind, rest = split_source(source)
    path = expanded(rest)
    file = load_task_file(path) if kind is None and is_task_file(path) else None
    if file and file.hub:
        return _of_hub(HubSource(file, copies, revision))
    if revision is not None:
        raise ConfigError("only published datasets have revisions", about=f"task '{source}'")
    if is_mteb(source):
        return _of_mteb(source.removeprefix(PREFIX), copies)
    with reading(f"task '{source}'", DataError):
        if kind:
            return _of_kind(path, kind, source=source)
        if file:
            return _of_files(file, "task file", where=str(path))
        if (path / DESCRIPTION).is_file():
            return _of_folder(path, read_description(path), "task folder")
    if path.exists():
        fault = f"no kind of task given; write {_ACCEPTED}"
        fault = _one_file(path, "sc") if path.is_file() else fault
        raise ConfigError(fault, about=f"task '{source}'")
    known = nearest(source, PUBLISHED)
    raise ConfigError(f"unknown task '{source}'{known}; or write {_ACCEPTED}")


def _of_hub(hub: HubSource) -> TaskSource:
    is_remote = hub.copies is None
    return TaskSource(
        lambda: hub.file, lambda: hub.determinants, hub.write, hub=hub, is_remote=is_remote
    )


def _of_kind(path: Path, kind: str, *, source: str) -> TaskSource:
    if (path / DESCRIPTION).is_file():
        description = read_description(path, kind=kind)
        if description.kind == kind:
            return _of_folder(path, description, "task folder")
        return _of_folder(path, _derived(description, kind), "zero-shot")
    name = name_of(path, kind)
    if path.is_file() and _is_one_file(kind):
        return _of_files(TaskFile(kind=kind, name=name, test=path), "file", where=str(path))
    if path.is_dir():
        file = TaskFile(kind=kind, name=name_in_kind(name, kind), folder=path)
        return _of_files(file, "folder", where=str(path))
    raise DataError(_remedy(path, kind), about=f"task '{source}'")


def _of_files(file: TaskFile, source: str, *, where: str) -> TaskSource:
    files = cache(partial(own_files, file, where=where))
    choices = tuple(_choices(file))

    @cache
    def determine() -> dict[str, Any]:
        names = {key: {"name": p.name, "sha256": file_sha256(p)} for key, p in files().items()}
        paths = {"folder", *SPLITS, "corpus", "queries"}
        settings = file.model_dump(mode="json", exclude=paths, exclude_defaults=True)
        origin = {"source": source, "files": names, "settings": settings}
        return {**origin, "chosen": choices} if choices else origin

    def write(folder: Path) -> None:
        with reading(where, DataError):
            content, counts = KINDS[file.kind].examples.read_files(file, files(), where=where)
        description = describe(file, origin={**determine(), "counts": counts}, where=where)
        write_task_folder(folder, description, content)

    return TaskSource(lambda: file, determine, write, choices)


def _of_folder(path: Path, description: TaskDescription, source: str) -> TaskSource:
    """Return the task in a task folder; with its own description, it keeps its identity."""

    @cache
    def determine() -> dict[str, Any]:
        hashes = {name: file_sha256(path / name) for name in task_files(path, description)}
        described = description.model_dump(mode="json", exclude_defaults=True)
        return {"source": source, "description": described, "files": hashes}

    def write(folder: Path) -> None:
        with complete_folder(folder) as partial:
            for name in determine()["files"]:
                (partial / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(path / name, partial / name)
            write_json(partial / DESCRIPTION, determine()["description"])

    return TaskSource(lambda: description, determine, write, folder=path)


def _derived(trained: TaskDescription, kind: str) -> TaskDescription:
    """Return the description of a folder of the kind that another one is derived from."""
    return TaskDescription(
        name=name_in_kind(trained.name, kind),
        kind=kind,
        title=f"{trained.title}, {KINDS[kind].facts.title}",
        metric=trained.metric,
        protocol=trained.protocol,
        license=trained.license,
        origin=trained.origin,
    )


def split_source(source: str) -> tuple[str | None, str]:
    """Split `KIND:PATH`; without a kind before the first colon, it is all path or name."""
    kind, colon, rest = source.partition(":")
    return (known_kind(kind), rest) if colon and kind in KINDS else (None, source)


def is_task_file(path: Path) -> bool:
    """Return whether a path is that of a task file."""
    return path.suffix in {".yaml", ".yml"}


def is_mteb(source: str) -> bool:
    """Return whether a source is a task of mteb."""
    return source.startswith(PREFIX)


def published_source(source: str) -> tuple[str, str | None] | None:
    """Return name and derived kind of a published dataset; None for another source."""
    kind, name = split_source(source)
    is_name = kind is None or KINDS[kind].derived_from is not None
    return (name, kind) if is_name and name in PUBLISHED else None


def _is_one_file(kind: str) -> bool:
    """Return whether a file is a whole task of a kind: its test split."""
    return KINDS[kind].examples.file_names(KINDS[kind].splits(trained_on=None)) == ["test.jsonl"]


def name_of(path: Path, kind: str | None) -> str:
    """Return the name of a task in a task file, a folder or a file of examples."""
    if kind is None and is_task_file(path):
        return load_task_file(path).name
    if (path / DESCRIPTION).is_file():
        return read_description(path, kind=kind).name
    name = path.resolve().name
    return name.partition(".")[0] if kind and path.is_file() and _is_one_file(kind) else name


def told_apart(names: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Return names of tasks, with its folder's name before each that several have: `sts12-test`."""
    named = (f"'{name}' ({source})" for name, source in zip(names, sources, strict=True))
    if again := repeated(named):
        raise ConfigError(f"the task {again[0]} is given more than once")
    counts = Counter(names)
    folders = (expanded(split_source(source)[1]).resolve().parent.name for source in sources)
    return [
        f"{folder}-{name}" if counts[name] > 1 else name
        for name, folder in zip(names, folders, strict=True)
    ]


def _remedy(path: Path, kind: str) -> str:
    """Say how to name what is no folder of a task."""
    if str(path) in PUBLISHED:
        return f"for the published dataset, write '{path}'"
    if not path.is_file():
        return "no such file or folder" if _is_one_file(kind) else "no such folder"
    if is_task_file(path):
        return "name a task file without the kind"
    has_splits = KINDS[kind].facts.is_trained and not KINDS[kind].examples.needed
    return _one_file(path, kind) if has_splits else "a file, not a folder"


def _one_file(path: Path, kind: str) -> str:
    is_plain = re.fullmatch(r"[\w.-]+", path.name)  # others may mean something in YAML
    name = path.name if is_plain else json.dumps(path.name, ensure_ascii=False)
    lines = f"{{kind: {kind}, train: {name}, validation_fraction: 0.1, test_fraction: 0.2}}"
    return f"one file, without splits; write {path.stem}.yaml with {lines}, and name that instead"


def _choices(file: TaskFile) -> Iterator[str]:
    for split in ("validation", "test"):
        if share := getattr(file, f"{split}_fraction"):
            yield f"{split} is {share:g} of the training split, chosen with seed {file.seed}"
    for split, limit in file.limits.items():
        yield f"{split} is limited to {limit:,}, chosen with seed {file.seed}"
    if most := file.pairs_per_paradigm:
        yield f"limited to {most:,} pairs of each paradigm, chosen with seed {file.seed}"


def prepare_task(
    found: TaskSource, *, store: Path, scratch: Path | None = None, say: Callable[[str], None]
) -> Path:
    """Return the folder of a task (docs/tasks.md); create it if the store lacks it.

    With `scratch`, the store is read-only: it is searched, and `scratch` is written instead.
    """
    key = found.key
    if scratch is not None:
        if is_complete(store / "tasks" / key):
            return store / "tasks" / key
        store = scratch
    folder = store / "tasks" / key
    with lock_work(store, f"task-{key}", wait=f"making task {found.name}", say=say):
        if is_complete(folder):
            return folder
        remove_partials(folder.parent, key)
        found.write(folder)
        try:
            task = load_task(folder)
        except DataError as error:
            # Read it before it counts as complete. Errors name the files that people have.
            shutil.rmtree(folder)
            raise DataError(str(error).replace(str(folder), str(found.folder or folder))) from None
    for note in _notes(task, found.choices):
        say(note)
    return folder


def _notes(task: Task, choices: Sequence[str]) -> Iterator[str]:
    """Yield the sizes of a task, how it was chosen, and what looks wrong with it."""
    name, unit = task.info.name, KINDS[task.info.kind].facts.unit
    counts = {split: task.num_examples(split) for split in SPLITS}
    sizes = (f"{split} {count:,}" for split, count in counts.items() if count)
    yield f"task {name}: {unit}: {', '.join(sizes)}"
    yield from (f"{name}: {choice}" for choice in choices)
    if isinstance(task, ExampleTask):
        for note in (*_label_notes(task), *_empty_notes(task)):
            yield f"warning: {name}: {note}"
    for pair, count in task.info.overlaps.items():
        earlier, later = pair.split("/")
        yield f"{name}: {count:,} of {counts[later]:,} {later} {unit} also occur in {earlier}"


def _label_notes(task: ExampleTask) -> Iterator[str]:
    """Yield what looks wrong with the labels of a task: they are used as they are."""
    first: dict[str, str] = {}
    for label in task.labels:
        key = str(int(label)) if WHOLE.fullmatch(label) else label.casefold()
        if first.setdefault(key, label) != label:
            yield f"the labels {first[key]!r} and {label!r} are two; if they are one, write one"
    numbers = [label for label in task.labels if WHOLE.fullmatch(label)]
    if 0 < len(numbers) < len(task.labels):
        yield f"some labels are numbers ({', '.join(numbers[:5])}), others are names"
    answers = [
        example.answer
        for example in task.splits.get("train", ())
        if isinstance(example, AnsweredText)
    ]
    if task.labels and answers:
        seen = {*(chain(*answers) if isinstance(answers[0], tuple) else answers)}
        if missing := [name for place, name in enumerate(task.labels) if place not in seen]:
            names = ", ".join(map(repr, missing[:5]))
            more = f" and {len(missing) - 5} more" * (len(missing) > 5)
            yield f"no training example has the labels {names}{more}; are labels numbered from 0?"


def _empty_notes(task: ExampleTask) -> Iterator[str]:
    """Yield how many texts of each split are empty."""
    for split, examples in task.splits.items():
        texts = [example.text for example in examples if isinstance(example, AnsweredText)]
        if number := sum(not text.strip() for text in texts):
            yield f"{number:,} of {len(texts):,} {split} texts are empty"
