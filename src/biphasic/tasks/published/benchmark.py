"""Tasks of mteb as tasks of ours: retrieval as `zs`, similarity of sentences as `sts`.

Their scores are records like all others, and the protocol sets how texts are read and pooled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from biphasic.config import nearest
from biphasic.errors import ConfigError, DataError, reading
from biphasic.extras import install_command
from biphasic.files import digest, file_sha256
from biphasic.hub import quiet
from biphasic.tasks.folder import write_task_folder
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.task_file import TaskFile, describe, own_files

PREFIX = "mteb:"
_KINDS = {"ndcg_at_10": "zs", "cosine_spearman": "sts"}  # by the main score of a task


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
    with (
        reading(f"task {task.metadata.name}", DataError, remedy="give its data with --data"),
        quiet(),
        _own_cache(task),
    ):
        task.load_data()


@contextmanager
def _own_cache(task: Any) -> Iterator[None]:
    """Keep what the datasets library reads from a local copy by the copy's content."""
    # The library keeps it by the folder's name, and would return the rows of an earlier copy.
    import datasets.config  # noqa: PLC0415 - takes seconds

    before, dataset = datasets.config.HF_DATASETS_CACHE, task.metadata.dataset
    if Path(dataset["path"]).is_absolute():  # a copy, whose revision is its content
        place = Path(before) / "local-copies" / dataset["revision"][:32]
        datasets.config.HF_DATASETS_CACHE = place
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before


def mteb_origin(task: Any) -> dict[str, Any]:
    """Return what determines the texts and judgements of a task."""
    revision = task.metadata.dataset["revision"]
    return {"mteb": task.metadata.name, "revision": revision, "version": version("mteb")}


def mteb_kind(task: Any) -> str:
    """Return the kind of ours that scores as a task does."""
    score = task.metadata.main_score
    if score not in _KINDS:
        raise ConfigError(
            f"its score, {score}, is none of {', '.join(_KINDS)}; run 'biphasic mteb' on it",
            about=f"task '{PREFIX}{task.metadata.name}'",
        )
    return _KINDS[score]


def write_mteb(task: Any, folder: Path) -> None:
    """Write a task folder from the test split of a task with one language."""
    name, kind = task.metadata.name, mteb_kind(task)
    where = f"{PREFIX}{name}"
    load_mteb(task)
    with TemporaryDirectory() as place:
        _write_files(task, Path(place), kind)
        if kind == "sts":
            file = TaskFile(kind=kind, name=name, test=Path(place, "test.jsonl"))
        else:
            full = {"retrieval_corpus": "full"}
            file = TaskFile(kind=kind, name=name, folder=Path(place), protocol=full)
        content, counts = KINDS[kind].read_files(file, own_files(file, where=where), where=where)
        description = describe(file, origin={**mteb_origin(task), "counts": counts}, where=where)
        write_task_folder(folder, description, content)
    task.unload_data()


def _write_files(task: Any, place: Path, kind: str) -> None:
    """Write the only evaluated split in the layout of our kinds."""
    data, splits = task.dataset, task.eval_splits
    if len(task.hf_subsets) > 1 or len(splits) > 1:
        raise DataError("it has several languages or splits; run 'biphasic mteb' on it")
    data = data.get(task.hf_subsets[0], data)[splits[0]]
    if kind == "sts":
        rows = ({"text_a": a, "text_b": b, "score": float(score)} for a, b, score in _pairs(data))
        _write_lines(place / "test.jsonl", rows)
        return
    _write_lines(place / "corpus.jsonl", (_text(row) for row in data["corpus"]))
    _write_lines(place / "queries.jsonl", (_text(row) for row in data["queries"]))
    (place / "qrels").mkdir()
    judged = [
        f"{query}\t{document}\t{score}\n"
        for query, documents in data["relevant_docs"].items()
        for document, score in documents.items()
    ]
    path = place / "qrels" / "test.tsv"
    path.write_text("query-id\tcorpus-id\tscore\n" + "".join(judged), encoding="utf-8")


def _pairs(data: Mapping[str, Any]) -> Iterable[tuple[str, str, float]]:
    return zip(data["sentence1"], data["sentence2"], data["score"], strict=True)


def _text(row: Mapping[str, Any]) -> dict[str, str]:
    return {"_id": str(row["id"]), "title": row.get("title") or "", "text": row["text"]}


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
