"""Test examples that occur in the training text of a study, counted once per store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from biphasic.amounts import amount
from biphasic.data.text.near_duplicates import COMPARISON_VERSION
from biphasic.errors import DataError
from biphasic.files import digest, read_json_object, write_json
from biphasic.progress import Report
from biphasic.store import OVERLAPS
from biphasic.study.inputs.tasks import PlannedTask
from biphasic.tasks.pairs.decontamination import count_seen
from biphasic.training.data import TrainingData
from biphasic.training.lineage import DataFingerprint

MOST_TOKENS = 500_000_000  # one process reads them in about twelve minutes


def overlap_path(store: Path, data: DataFingerprint, task: PlannedTask) -> Path:
    """Return the file with the number of a task's test examples that occur in training text."""
    determinants = {
        "text": sorted({data.corpus_hash, *data.corpora.values()}),
        "tokenizer": data.tokenizer_sha256,
        "task": task.info.sha256,
        "comparison": COMPARISON_VERSION,
    }
    return store / OVERLAPS / f"{digest(determinants)[:32]}.json"


def num_seen(store: Path, data: DataFingerprint, task: PlannedTask) -> int | None:
    """Return how many test examples of a task occur in training text; None if not counted."""
    path = overlap_path(store, data, task)
    if not path.is_file():
        return None
    remedy = "delete it; 'biphasic study run' counts again"
    seen = read_json_object(path, remedy=remedy).get("num_seen")
    if type(seen) is not int or not 0 <= seen <= task.num_examples["test"]:
        raise DataError(f"{path}: num_seen is {seen!r}, not a number of test examples; {remedy}")
    return seen


def count_overlaps(
    store: Path, data: TrainingData, tasks: Iterable[PlannedTask], *, report: Report
) -> str:
    """Count what was not counted before; return why not, or an empty string."""
    missing = {
        path: task
        for task in tasks
        if not (path := overlap_path(store, data.fingerprint, task)).is_file()
        # By construction, the texts of built-in tasks are in no corpus of `builtin:pydocs`.
        and not task.is_builtin
    }
    tokens = sum(corpus.num_tokens for corpus in (data.corpus, *data.corpora.values()))
    if missing and tokens > MOST_TOKENS:
        return (
            f"test examples were not looked for in the training corpus: it has {amount(tokens)} "
            f"tokens, more than {amount(MOST_TOKENS)}; 'against' leaves them out when it is built"
        )
    if missing:
        counts = count_seen([task.folder for task in missing.values()], _documents(data, report))
        for (path, task), seen in zip(missing.items(), counts, strict=True):
            path.parent.mkdir(exist_ok=True)
            write_json(path, {"task": task.info.name, "num_seen": seen})
    return ""


def _documents(data: TrainingData, report: Report) -> Iterator[str]:
    corpora, done = (data.corpus, *data.corpora.values()), 0
    total = sum(map(len, corpora))
    for corpus in corpora:
        for place, length in enumerate(corpus.lengths.tolist()):
            yield data.tokenizer.decode(corpus.tokens(place, 0, length).tolist())
            report(done := done + 1, total)
