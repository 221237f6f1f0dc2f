"""Kinds of tasks that only this file knows: files, training, scores, report, predictions."""

# ruff: noqa: ARG002 - kinds get more arguments than these need

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pydantic import AliasChoices, Field, field_validator
from pydantic.dataclasses import dataclass

from biphasic import evaluate, finetune
from biphasic.analysis.report import write_report
from biphasic.errors import ConfigError
from biphasic.facts import FIRST_KINDS, MetricFacts, facts_to_record
from biphasic.records import StudyRecord
from biphasic.tasks.folder import load_task_file
from biphasic.tasks.inputs import open_input
from biphasic.tasks.kinds.examples import FIELDS, Example, Real, RecordFiles, Text
from biphasic.tasks.kinds.kind import Facts, Learner, SplitScores, TaskKind
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.kinds.text import AnsweredText, TextLearner, pooled_outputs
from biphasic.tasks.use import predict_file
from custom_tasks import write_csv
from tiny_use import read_jsonl, words, write_jsonl, write_model

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
from fake_study import FakeStudy

SIGNS = MetricFacts("signs", "agreement of signs", at_zero="no sign was right")


@dataclass(frozen=True, config=FIELDS)
class Opinion(AnsweredText):
    """A text and its sign."""

    answer: Annotated[Real, Field(validation_alias=AliasChoices("polarity", "sign"))]

    @field_validator("answer")
    @classmethod
    def _is_sign(cls, value):
        if value not in {-1.0, 1.0}:
            raise ValueError(f"the polarity must be -1 or 1, not {value:g}")
        return value


class SignLearner(TextLearner):
    """Texts and their signs."""

    predicted: ClassVar = {"is_for": bool, "strength": float}

    def mean_loss(self, outputs, expected):
        signs = torch.from_numpy(expected.astype(np.float32))
        return F.softplus(-outputs.squeeze(1) * signs).mean()

    def decide(self, outputs):
        return outputs[:, 0]

    @classmethod
    def score(cls, task, split, predicted) -> SplitScores:
        right = (predicted > 0) == (cls.answers(task, split) > 0)
        scores = right.astype(np.float64)
        metrics = {"signs": float(right.mean()), "accuracy": float(right.mean())}
        return SplitScores(metrics, task.ids(split), scores, {"signs": scores})

    @classmethod
    def predict(cls, finetuned, examples):
        outputs, cut = pooled_outputs(finetuned, examples)
        return [{"is_for": x > 0, "strength": abs(x)} for x in outputs[:, 0].tolist()], cut


class Polarity(TaskKind):
    """Whether a text is for or against: one output, its sign."""

    name = "po"
    examples = RecordFiles(Opinion)
    learner = SignLearner
    facts = Facts(
        "polarity",
        (SIGNS, MetricFacts("accuracy", "accuracy")),
        is_pooled=True,
        form="sequence-classification",
        output_names=("for",),
        does="says whether a text is for or against",
    )


@dataclass(frozen=True, config=FIELDS)
class Two(Example):
    """Two texts."""

    inputs: ClassVar = ("better", "worse")
    better: Text
    worse: Text


class NormLearner(Learner):
    """Pairs of texts, without anything to learn."""

    def encode(self, task):
        texts = [text for two in task.splits["test"] for text in (two.better, two.worse)]
        self._sequences = self.framed(texts, "test")

    def evaluate(self, encoder, head) -> dict[str, SplitScores]:
        better, worse = encoder.pooled(self._sequences).norm(dim=1).reshape(-1, 2).T
        wins = (better > worse).double().cpu().numpy()
        metrics = {"wins": float(wins.mean())}
        return {"test": SplitScores(metrics, self.task.ids("test"), wins, {"wins": wins})}


class Longer(TaskKind):
    """Which of two texts an encoder as it is puts farther from the origin."""

    name = "lo"
    examples = RecordFiles(Two)
    learner = NormLearner
    facts = Facts("longer vector", (MetricFacts("wins", "wins"),), is_trained=False)


@pytest.fixture
def kinds(monkeypatch):
    for kind in (Polarity(), Longer()):
        monkeypatch.setitem(KINDS, kind.name, kind)


@pytest.fixture
def files(tmp_path) -> Path:
    """The user's files of the first kind."""
    rng, folder = np.random.default_rng(0), tmp_path / "mood"
    folder.mkdir()
    for split, number in (("train", 64), ("dev", 16), ("test", 16)):
        signs = rng.choice([-1, 1], number).tolist()
        rows = [[" ".join([*words(rng), "cat" if sign > 0 else "dog"]), sign] for sign in signs]
        write_csv(folder / f"{split}.csv", ["text", "sign"], rows)
    return folder


@pytest.fixture
def settings(tmp_path) -> dict[str, Any]:
    protocol = {"max_steps": 20, "max_epochs": 10, "batch_size": 16, "max_seqlen": 32}
    return {
        "learning_rates": [3e-3],
        "seeds": [0, 1],
        "protocol": protocol,
        "root": tmp_path / "root",
        "quiet": True,
    }


@pytest.mark.usefixtures("kinds", "unprobed", "one_thread")
def test_a_kind_that_is_trained(tmp_path, files, settings):
    model = write_model(tmp_path / "eurobert", "eurobert")
    result = evaluate(model, f"po:{files}", **settings)
    assert (result.metric, result.task.kind) == ("signs", "po")
    assert result.estimate is not None
    assert result.estimate.mean == 100 * np.mean([run.test["signs"] for run in result.selected])
    assert result.estimate.mean > 75
    assert result.results[0].about == facts_to_record("po", Polarity.facts)

    made = finetune(model, f"po:{files}", tmp_path / "judge", **{**settings, "seeds": [0]})
    assert made.record.form == "sequence-classification"
    assert "it says whether a text is for or against." in (made.folder / "README.md").read_text()
    predict_file(made.folder, open_input(str(files / "test.csv")), tmp_path / "out.jsonl")
    signs = [row["is_for"] for row in read_jsonl(tmp_path / "out.jsonl")]
    _, *lines = (files / "test.csv").read_text().splitlines()
    given = [line.endswith(",1") for line in lines]
    right = sum(sign == wanted for sign, wanted in zip(signs, given, strict=True))
    assert made.record.test["signs"] == right / len(given)


@pytest.mark.usefixtures("kinds", "unprobed", "one_thread")
def test_a_kind_without_training(tmp_path, settings):
    model, folder = write_model(tmp_path / "eurobert", "eurobert"), tmp_path / "pairs"
    folder.mkdir()
    rng = np.random.default_rng(1)
    pairs = [{"better": " ".join(words(rng)), "worse": " ".join(words(rng))} for _ in range(12)]
    write_jsonl(folder / "test.jsonl", pairs)
    result = evaluate(model, f"lo:{folder}", **settings)
    [run] = result.results
    assert (run.steps, run.validation, run.is_zero_shot) == (0, None, True)
    assert result.estimate.mean == pytest.approx(100 * run.test["wins"])
    assert 12 * run.test["wins"] == round(12 * run.test["wins"])


@pytest.mark.usefixtures("kinds")
def test_settings_and_rows_are_checked_by_the_kind(tmp_path, files):
    path = tmp_path / "task.yaml"
    path.write_text("kind: po\nfolder: mood\ncolumns: {polarity: sign, label: x}\n")
    with pytest.raises(ConfigError, match=r"columns\.label: .* kind po"):
        load_task_file(path)
    path.write_text("kind: lo\nfolder: mood\ntrain: x.jsonl\n")
    with pytest.raises(ConfigError, match="'train': the task has no training split"):
        load_task_file(path)
    path.write_text("kind: po\nlabels: [a, b]\n")
    with pytest.raises(ConfigError, match=r"'labels' is for .* not po"):
        load_task_file(path)


@pytest.mark.usefixtures("undrawn")
def test_its_report_needs_only_its_records(tmp_path):
    """The kinds are not registered here, as on a machine that has only the records."""
    kinds = (Polarity, Longer)
    about = {kind.name: asdict(facts_to_record("", kind.facts)) for kind in kinds}
    tasks = (("mood", "po", "Mood", "signs", 0.6), ("pairs", "lo", "Pairs", "wins", 0.5))
    study, store = FakeStudy(tasks=tasks, learning_rates=(1e-3,), seeds=(0, 1, 2)).write(tmp_path)
    raw = json.loads((study / "study.json").read_text())
    for task in raw["tasks"]:
        task["about"] = about[task["kind"]]
    (study / "study.json").write_text(json.dumps(raw))
    record = StudyRecord.model_validate(raw)
    assert [task.is_zero_shot for task in record.tasks] == [False, True]
    html = write_report(study, store).read_text()
    assert "agreement of signs" in html
    text = re.sub(r"<[^>]+>", "", html)
    assert "Zero-shot tasks have one run" in text
    assert "Zero-shot: scored without fine-tuning." in text  # whatever gives the scores


def test_kinds_are_read_without_libraries_that_compute():
    """Plans and task files need them; torch takes seconds to import."""
    heavy = {"torch", "transformers", "sklearn", "scipy", "datasets", "pyarrow"}
    code = "import sys, biphasic.tasks.kinds.registry; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert heavy & set(loaded.split()) == set()


def test_records_of_the_first_kinds_say_nothing_new():
    for name in FIRST_KINDS:
        assert facts_to_record(name, KINDS[name].facts) is None
