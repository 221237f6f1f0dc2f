"""Task folders: four kinds of files into tasks, every mistake named by file and line.

The layout of each kind is in `docs/formats.md`. Nothing is skipped or mended here: a record that
cannot be used is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from biphasic.config import nearest
from biphasic.errors import DataError
from biphasic.files import digest, file_sha256, read_json
from biphasic.tasks.metrics import METRICS_BY_KIND
from biphasic.tasks.records import (
    KINDS,
    SPLITS,
    Answer,
    ClassificationTask,
    Kind,
    LabelledText,
    Question,
    QuestionTask,
    RetrievalTask,
    TaggedSentence,
    TaggingTask,
    Task,
    TaskInfo,
)

_PAIR_TEMPLATE = "Sentence 1: {text_a}\nSentence 2: {text_b}"
_QRELS_HEADER = ("query-id", "corpus-id", "score")
_DESCRIPTION_KEYS = {"name", "kind", "title", "metric", "template"}
_REQUIRED: Any = object()
RecordT = TypeVar("RecordT", LabelledText, TaggedSentence, Question)


@dataclass(frozen=True, slots=True)
class _Line:
    """One JSON object of a file, and where it stands."""

    path: Path
    number: int
    value: dict[str, Any]

    def error(self, message: str) -> DataError:
        return DataError(f"{self.path}:{self.number}: {message}")

    def text(self, key: str, default: str = _REQUIRED) -> str:
        value = self.value.get(key, default)
        if value is _REQUIRED:
            raise self.error(f"no field '{key}'")
        if not isinstance(value, str):
            raise self.error(f"'{key}' must be a text, not {value!r}")
        return value

    def items(self, key: str, kind: type) -> list[Any]:
        value = self.value.get(key)
        # A bool is an int to Python, never to a person.
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.error(f"'{key}' must be a list of {kind.__name__}")
        return value

    def id(self, key: str = "id") -> str:
        value = self.value.get(key, self.number)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(f"'{key}' must be a text or a whole number, not {value!r}")
        return str(value)


def load_task(folder: Path, *, kind: Kind | None = None, name: str | None = None) -> Task:
    """Read a task folder.

    Args:
        folder: Files in the layout of the task's kind.
        kind: Needed where the folder has no `task.json`; must agree with it where it has.
        name: Name of the task in reports; by default the one in `task.json`, or the folder's.

    Raises:
        DataError: A file is missing, or a record cannot be used; the message names file and line.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such task folder")
    description = _describe(folder, kind=kind, name=name)
    found = description["kind"]
    files = _files(folder, found)
    hashes = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
    identity = {"kind": found, "files": hashes, "template": description["template"]}
    info = TaskInfo(
        name=description["name"],
        kind=found,
        title=description["title"],
        metric=description["metric"],
        sha256=digest(identity),
    )
    match found:
        case "sc":
            return _read_classification(folder, info, template=description["template"])
        case "tc":
            return _read_tagging(folder, info)
        case "qa":
            return QuestionTask(info, _read_splits(folder, _question))
        case _:
            return _read_retrieval(folder, info)


def _describe(folder: Path, *, kind: Kind | None, name: str | None) -> dict[str, Any]:
    path = folder / "task.json"
    described = read_json(path) if path.is_file() else {}
    if not isinstance(described, dict):
        raise DataError(f"{path}: expected one JSON object")
    for key in described.keys() - _DESCRIPTION_KEYS:
        raise DataError(f"{path}: unknown key '{key}'{nearest(key, _DESCRIPTION_KEYS)}")
    found = described.get("kind", kind)
    if found is None:
        raise DataError(
            f"{folder}: no task.json; say of which kind the task is: {', '.join(KINDS)}"
        )
    if found not in KINDS:
        raise DataError(f"{path}: unknown kind '{found}'{nearest(str(found), KINDS)}")
    if kind is not None and kind != found:
        raise DataError(f"{path}: the task is of kind '{found}', not '{kind}'")
    metrics = METRICS_BY_KIND[found]
    metric = described.get("metric", metrics[0])
    if metric not in metrics:
        raise DataError(
            f"{path}: no metric '{metric}' for kind '{found}'{nearest(metric, metrics)}"
        )
    chosen = name or described.get("name", folder.name)
    return {
        "name": chosen,
        "kind": cast(Kind, found),
        "title": described.get("title", chosen),
        "metric": metric,
        "template": described.get("template", _PAIR_TEMPLATE),
    }


def _files(folder: Path, kind: Kind) -> list[Path]:
    if kind == "ir":
        names = ["corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in SPLITS)]
    else:
        names = [f"{split}.jsonl" for split in SPLITS]
    if kind in {"sc", "tc"}:
        names.append("labels.json")
    for name in names:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: no such file; a task of kind '{kind}' needs it")
    return [folder / name for name in names]


def _lines(path: Path) -> Iterator[_Line]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                value = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise DataError(f"{path}:{number}: not valid JSON ({error})") from None
            if not isinstance(value, dict):
                raise DataError(f"{path}:{number}: expected a JSON object")
            yield _Line(path, number, value)


def _read_splits(folder: Path, parse: Callable[[_Line], RecordT]) -> dict[str, tuple[RecordT, ...]]:
    splits = {}
    for split in SPLITS:
        records: dict[str, RecordT] = {}
        for line in _lines(folder / f"{split}.jsonl"):
            record = parse(line)
            if record.id in records:
                raise line.error(f"the id '{record.id}' occurs a second time")
            records[record.id] = record
        if not records:
            raise DataError(f"{folder / split}.jsonl: the split is empty")
        splits[split] = tuple(records.values())
    return splits


def _read_labels(folder: Path) -> tuple[str, ...]:
    path = folder / "labels.json"
    labels = read_json(path)
    if isinstance(labels, dict):
        if sorted(labels) != sorted(str(number) for number in range(len(labels))):
            raise DataError(f"{path}: label numbers must run from 0 to {len(labels) - 1}")
        labels = [labels[str(number)] for number in range(len(labels))]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DataError(f"{path}: expected a list of label names")
    if len(set(labels)) != len(labels) or len(labels) < 2:
        raise DataError(f"{path}: expected at least two different label names")
    return tuple(labels)


def _read_classification(folder: Path, info: TaskInfo, *, template: str) -> ClassificationTask:
    labels = _read_labels(folder)

    def parse(line: _Line) -> LabelledText:
        label = line.value.get("label")
        if type(label) is not int or not 0 <= label < len(labels):
            raise line.error(f"unknown label {label!r}; labels.json has 0 to {len(labels) - 1}")
        return LabelledText(line.id(), _classified_text(line, template), label)

    return ClassificationTask(info, labels, _read_splits(folder, parse))


def _classified_text(line: _Line, template: str) -> str:
    if "text_a" not in line.value:
        return line.text("text")
    return re.sub(r"\{(\w+)\}", lambda field: line.text(field[1]), template)


def _read_tagging(folder: Path, info: TaskInfo) -> TaggingTask:
    labels = _read_labels(folder)
    numbers = {label: number for number, label in enumerate(labels)}
    for label in labels:
        if label != "O" and label[:2] not in {"B-", "I-"}:
            raise DataError(f"{folder / 'labels.json'}: '{label}' is not a BIO2 tag")
    if "O" not in numbers:
        raise DataError(f"{folder / 'labels.json'}: the tag 'O' is missing")

    def parse(line: _Line) -> TaggedSentence:
        words, tags = line.items("tokens", str), line.items("tags", str)
        if len(words) != len(tags):
            raise line.error(f"{len(words)} tokens but {len(tags)} tags")
        if not words:
            raise line.error("the sentence has no tokens")
        _check_tags(line, tags, numbers)
        return TaggedSentence(line.id(), tuple(words), tuple(numbers[tag] for tag in tags))

    return TaggingTask(info, labels, _read_splits(folder, parse))


def _check_tags(line: _Line, tags: list[str], known: dict[str, int]) -> None:
    previous = "O"
    for position, tag in enumerate(tags):
        if tag not in known:
            raise line.error(f"unknown label '{tag}' at token {position}; labels.json lacks it")
        if tag.startswith("I-") and previous[2:] != tag[2:]:
            raise line.error(
                f"not valid BIO2: '{tag}' at token {position} follows '{previous}'; "
                f"an entity begins with 'B-{tag[2:]}'"
            )
        previous = tag


def _question(line: _Line) -> Question:
    context = line.text("context")
    answers = line.value.get("answers")
    if not isinstance(answers, dict):
        raise line.error("'answers' must be an object with 'text' and 'answer_start'")
    given = _Line(line.path, line.number, answers)
    texts, starts = given.items("text", str), given.items("answer_start", int)
    if len(texts) != len(starts):
        raise line.error(f"{len(texts)} answer texts but {len(starts)} values of answer_start")
    for text, start in zip(texts, starts, strict=True):
        if not text or start < 0 or context[start : start + len(text)] != text:
            raise line.error(f"the answer {text!r} does not stand at {start} in the context")
    paired = tuple(Answer(text, start) for text, start in zip(texts, starts, strict=True))
    return Question(line.id(), line.text("question"), context, paired)


def _read_retrieval(folder: Path, info: TaskInfo) -> RetrievalTask:
    corpus = _texts_by_id(folder / "corpus.jsonl")
    queries = _texts_by_id(folder / "queries.jsonl")
    qrels = {}
    for split in SPLITS:
        path = folder / "qrels" / f"{split}.tsv"
        qrels[split] = _read_qrels(path, queries=queries, corpus=corpus)
    return RetrievalTask(info, corpus, queries, qrels)


def _texts_by_id(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for line in _lines(path):
        if "_id" not in line.value:
            raise line.error("no field '_id'")
        key, title = line.id("_id"), line.text("title", "")
        if key in texts:
            raise line.error(f"the id '{key}' occurs a second time")
        body = line.text("text")
        texts[key] = f"{title}. {body}" if title else body
    return texts


def _read_qrels(
    path: Path, *, queries: dict[str, str], corpus: dict[str, str]
) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    rows = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if tuple(rows[:1]) != ("\t".join(_QRELS_HEADER),):
        raise DataError(f"{path}:1: the header must be {', '.join(_QRELS_HEADER)}, tab-separated")
    for number, row in enumerate(rows[1:], start=2):
        fields = row.split("\t")
        if len(fields) != 3 or not fields[2].isdecimal():
            raise DataError(f"{path}:{number}: expected query, document and a score of 0 or more")
        query, document, score = fields
        if query not in queries:
            raise DataError(f"{path}:{number}: unknown query '{query}'; queries.jsonl lacks it")
        if document not in corpus:
            raise DataError(
                f"{path}:{number}: unknown document '{document}'; corpus.jsonl lacks it"
            )
        qrels.setdefault(query, {})[document] = int(score)
    if not any(score for judged in qrels.values() for score in judged.values()):
        raise DataError(f"{path}: the split is empty (no relevant document)")
    return qrels
