"""Tasks of mteb as tasks of ours: retrieval as `zs`, similarity of sentences as `sts`.

Their scores are records like all others, and the protocol sets how texts are read and pooled.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from biphasic.config import nearest, parse_config
from biphasic.errors import ConfigError, DataError, install_command, reading
from biphasic.files import digest, file_sha256
from biphasic.hub import quiet
from biphasic.tasks.folder import TaskDescription, write_task_folder
from biphasic.tasks.records import TaskContent

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
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
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


def mteb_origin(task: Any) -> dict[str, Any]:
    """Return what determines the texts and judgements of a task."""
    revision = task.metadata.dataset["revision"]
    return {"mteb": task.metadata.name, "revision": revision, "version": version("mteb")}


def mteb_kind(task: Any) -> str:
    """Return the kind of ours that scores as a task does."""
    about = task.metadata
    kind = None if task.is_aggregate else _KINDS.get((about.type, about.main_score))
    if kind is None:
        what = "several tasks" if task.is_aggregate else f"{about.type} by {about.main_score}"
        known = " and ".join(f"{type_} by {score}" for type_, score in _KINDS)
        raise ConfigError(
            f"it is {what}; studies and 'evaluate' score only {known}: run 'biphasic mteb' on it",
            about=f"task '{PREFIX}{about.name}'",
        )
    return kind


def write_mteb(task: Any, folder: Path) -> None:
    """Write a task folder from the only evaluated split of a task with one language."""
    name, kind = task.metadata.name, mteb_kind(task)
    where = f"task '{PREFIX}{name}'"
    load_mteb(task)
    with reading(where, DataError, remedy="check its data"):
        content, number = (_similarity if kind == "sts" else _retrieval)(task, _only_split(task))
    origin = {**mteb_origin(task), "counts": {"test": number}}
    raw: dict[str, Any] = {"kind": kind, "name": name, "origin": origin}
    if kind == "zs":
        raw["protocol"] = {"retrieval_corpus": "full"}
    write_task_folder(folder, parse_config(TaskDescription, raw, where=where), content)
    task.unload_data()


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
