"""Tasks of mteb with the packed encoder, with a score for each example where there is one.

mteb keeps all models without a name under one name, and would give one of them the results of
another. Here a model's revision is the content of its files.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytrec_eval
from mteb.abstasks import AbsTask, AbsTaskClassification, AbsTaskRetrieval, AbsTaskSTS
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from mteb.results import TaskResult
from numpy.typing import NDArray

from biphasic.amounts import points
from biphasic.analysis.text import csv_text
from biphasic.errors import DataError, ModelError, reading
from biphasic.files import digest, is_file, write_text
from biphasic.locks import Say
from biphasic.shown import Shown
from biphasic.tasks.embedding import (
    Choices,
    Embedder,
    choices_by_role,
    embedding_settings,
    fetch_embedding_model,
    files_digest,
    load_embedder,
    prompts_of,
)
from biphasic.tasks.kinds.similarity import rank_products
from biphasic.tasks.source import load_mteb, mteb_task

_META = "model_meta.json"
_TOLERANCE = 1e-5
# Measures of pytrec_eval by mteb's names, without their depths.
_MEASURES = {
    "ndcg_at": "ndcg_cut",
    "map_at": "map_cut",
    "recall_at": "recall",
    "precision_at": "P",
    "hit_rate_at": "success",
}
_SIMILARITIES = ("cosine", "dot")  # those that mteb computes
Values = dict[str, float]


@dataclass(frozen=True)
class TaskScore:
    """A model's score on a task, as a share.

    Attributes:
        folder: Folder with `TASK.json`, as mteb writes it, and `TASK.csv`, the scores of examples.
        num_examples: Queries, pairs or texts with a score; 0 if the task has none.
    """

    task: str
    metric: str
    score: float
    num_examples: int
    folder: Path


class PackedEncoder(AbsEncoder):
    """The encoder as mteb asks for it."""

    def __init__(self, embedder: Embedder, by_prompt: Mapping[str, Embedder], meta: ModelMeta):
        """Use an embedder, or that of a prompt that a task asks for."""
        self._embedder, self._by_prompt = embedder, dict(by_prompt)
        self.meta = self.mteb_model_meta = meta
        self.model_prompts = dict.fromkeys(by_prompt, "")

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> NDArray[np.float32]:
        """Return a vector for each text, [num_texts, width]."""
        name = self.get_prompt_name(task_metadata, prompt_type)
        embedder = self._embedder if name is None else self._by_prompt[name]
        vectors, _cut = embedder.embed([text for batch in inputs for text in batch["text"]])
        return vectors


def run_benchmark(
    model: str,
    tasks: Sequence[str],
    out: Path,
    *,
    data: Path | None = None,
    revision: str | None = None,
    choices: Choices,
    say: Say,
) -> Iterator[TaskScore]:
    """Run tasks of mteb; a task with a result of this model, data and version is not run again."""
    # `data` is a folder with copies of the tasks' datasets, each named like its task or its
    # repository; the hub is not asked then.
    prepared = [mteb_task(name, data) for name in tasks]
    folder = fetch_embedding_model(model, revision=revision)
    settings = embedding_settings(folder, choices)
    if settings.similarity not in _SIMILARITIES:
        known = " and ".join(_SIMILARITIES)
        raise ModelError(
            f"{folder}: its vectors are compared by '{settings.similarity}'; only {known} are "
            "supported: use sentence-transformers"
        )
    parts = [files_digest(folder), repr(choices)]
    if settings.similarity != "cosine":  # earlier results of other models stay theirs
        parts.append(settings.similarity)
    content = digest(parts)
    is_local = Path(model).expanduser().exists()
    name = f"local/{folder.resolve().name[:64]}" if is_local else model
    run = _Run(folder, choices, out / "results" / name.replace("/", "__") / content, name, content)
    for task in prepared:
        finished = run.finished(task)
        if finished is None:
            say(f"{task.metadata.name}: running")
            run.run(task)
            finished = run.finished(task)
            assert finished is not None  # noqa: S101 - it was written just now
        yield finished


@dataclass(frozen=True)
class _Run:
    """One model, and the folder of its results."""

    folder: Path
    choices: Choices
    place: Path
    name: str
    revision: str

    @cached_property
    def encoder(self) -> PackedEncoder:
        """The encoder, loaded when the first task is run."""
        embedder = load_embedder(embedding_settings(self.folder, self.choices))
        given = self.choices.prefix is not None or self.choices.prompt is not None
        choices = {
            **choices_by_role(self.folder, self.choices),
            **{name: replace(self.choices, prompt=name) for name in prompts_of(self.folder)},
        }
        by_prompt = {
            name: replace(embedder, settings=embedding_settings(self.folder, of_prompt))
            for name, of_prompt in ({} if given else choices).items()
        }
        about = {
            "name": self.name,
            "revision": self.revision,
            "embed_dim": embedder.width,
            "max_tokens": embedder.settings.max_seqlen,
            "similarity_fn_name": ScoringFunction(embedder.settings.similarity),
        }
        return PackedEncoder(embedder, by_prompt, ModelMeta.create_empty(about))

    def finished(self, task: AbsTask) -> TaskScore | None:
        """Return the score of a finished task; None if it is to be run."""
        path = self.place / f"{task.metadata.name}.json"
        if not is_file(path):
            return None
        with reading(path, DataError, remedy="delete it and run again", failure="damaged"):
            raw = json.loads(path.read_text("utf-8"))
            is_same = raw["dataset_revision"] == task.metadata.revision
            if not (is_same and raw["mteb_version"] == mteb.__version__):
                return None
            parts = [part["main_score"] for split in raw["scores"].values() for part in split]
            examples = path.with_suffix(".csv")
            number = len(examples.read_text("utf-8").splitlines()) - 1 if is_file(examples) else 0
            metric, score = task.metadata.main_score, float(np.mean(parts))
            return TaskScore(task.metadata.name, metric, score, number, self.place)

    def run(self, task: AbsTask) -> None:
        """Run a task, and write its result last."""
        encoder, what = self.encoder, f"task {task.metadata.name}"
        self.place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as running:
            load_mteb(task)
            with reading(what, DataError, remedy="check its data", failure="mteb cannot run it"):
                found = mteb.evaluate(
                    encoder,  # pyright: ignore[reportArgumentType]  # the protocol has __init__
                    task,
                    cache=None,
                    co2_tracker=False,
                    show_progress_bar=False,
                    prediction_folder=Path(running),
                )
            [result] = found.task_results
            examples = _examples(task, result, Path(running) / task.prediction_file_name)
            # Neither an earlier result nor its examples may stand beside those of this run.
            for suffix in ("json", "csv"):
                (self.place / f"{task.metadata.name}.{suffix}").unlink(missing_ok=True)
            write_text(self.place / _META, json.dumps(encoder.meta.to_dict()))
            if examples:
                table = csv_text(("id", task.metadata.main_score), examples.items())
                write_text(self.place / f"{task.metadata.name}.csv", table)
            written = Path(running) / "result.json"
            result.to_disk(written)
            write_text(self.place / f"{task.metadata.name}.json", written.read_text("utf-8"))
        task.unload_data()


def _examples(task: AbsTask, result: TaskResult, predictions: Path) -> Values:
    """Return the scores of examples whose mean is the task's score; none if unknown."""
    if not is_file(predictions):
        return {}
    by_subset = json.loads(predictions.read_text("utf-8"))
    values: Values = {}
    for split, parts in result.scores.items():
        for part in parts:
            subset = part["hf_subset"]
            data: Any = task.dataset
            data = (
                data[split] if subset not in data and subset == "default" else data[subset][split]
            )
            scores = _scores(task, data, by_subset[subset][split])
            # A task may rank in another way, as those that skip a query's own document do.
            mean = float(np.mean([*scores.values()])) if scores else np.inf
            if abs(mean - part["main_score"]) > _TOLERANCE:
                return {}
            prefix = "" if subset == "default" and len(result.scores) == 1 else f"{subset}/{split}/"
            values |= {prefix + key: value for key, value in scores.items()}
    # In the task's score, each language counts the same, however many examples it has.
    score = np.mean([part["main_score"] for parts in result.scores.values() for part in parts])
    return values if abs(np.mean([*values.values()]) - score) <= _TOLERANCE else {}


def _scores(task: AbsTask, data: Any, found: Any) -> Values:
    """Return the scores of the examples of a split by what mteb found; none for other tasks."""
    score = task.metadata.main_score
    name, _, depth = score.rpartition("_")
    if isinstance(task, AbsTaskRetrieval) and name in _MEASURES:
        judged = {query: dict(documents) for query, documents in data["relevant_docs"].items()}
        evaluator = pytrec_eval.RelevanceEvaluator(judged, {f"{_MEASURES[name]}.{depth}"})
        by_query = sorted(evaluator.evaluate(dict(found)).items())
        return {query: of[f"{_MEASURES[name]}_{depth}"] for query, of in by_query}
    if isinstance(task, AbsTaskSTS) and score.endswith("spearman"):
        people = np.array(data["score"], dtype=np.float64)
        values = rank_products(people, np.array(found["cosine_scores"]).ravel())
    elif (
        isinstance(task, AbsTaskClassification)
        and (task.metadata.type, score) == ("Classification", "accuracy")
        and not task.is_cross_validation
    ):
        # The share of mteb's classifiers, on several draws of training examples, that are right.
        values = (np.array(found) == np.array(data[task.label_column_name])).mean(axis=0)
    else:
        return {}
    return {str(number): value for number, value in enumerate(values.tolist())}


@dataclass(frozen=True, repr=False)
class BenchmarkScores(Shown):
    """What `run_mteb` returns.

    Attributes:
        scores: Of each task, in the order asked for.
        out: Folder of the results of all models.
    """

    scores: tuple[TaskScore, ...]
    out: Path

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each task, with its score in percentage points."""
        return [
            {
                "task": one.task,
                "metric": one.metric,
                "score": 100 * one.score,
                "num_examples": one.num_examples,
            }
            for one in self.scores
        ]

    def lines(self) -> Iterator[str]:
        """Return the scores."""
        for one in self.scores:
            of = f", scores of {one.num_examples:,} examples" if one.num_examples else ""
            yield f"{one.task} {one.metric}: {points(one.score)}{of}"
