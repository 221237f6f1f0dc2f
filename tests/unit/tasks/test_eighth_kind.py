"""Kinds of tasks that only this file knows: files, training, scores, report, predictions."""

# ruff: noqa: ARG002 - kinds get more arguments than these need

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from biphasic import evaluate, finetune
from biphasic.analysis.report import write_report
from biphasic.errors import ConfigError
from biphasic.facts import FIRST_KINDS, KindFacts, MetricFacts, facts_to_record
from biphasic.records import StudyRecord
from biphasic.tasks.inputs import open_input
from biphasic.tasks.kinds.examples import ExampleKind
from biphasic.tasks.kinds.kind import EncodedTask, SplitScores
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.kinds.text import EncodedTexts, TextKind, pooled_outputs
from biphasic.tasks.predict import predict_file
from biphasic.tasks.records import AnsweredText
from biphasic.tasks.task_file import load_task_file
from custom_tasks import write_csv
from tiny_use import read_jsonl, words, write_jsonl, write_model

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
from fake_study import FakeStudy

SIGNS = MetricFacts("signs", "agreement of signs", at_zero="no sign was right")


class EncodedSigns(EncodedTexts):
    """Texts and their signs."""

    def expect(self, example):
        return example.answer

    def mean_loss(self, outputs, expected):
        signs = torch.from_numpy(expected.astype(np.float32))
        return F.softplus(-outputs.squeeze(1) * signs).mean()

    def score(self, ids, outputs, expected) -> SplitScores:
        right = (outputs[:, 0] > 0) == (expected > 0)
        scores = right.astype(np.float64)
        metrics = {"signs": float(right.mean()), "accuracy": float(right.mean())}
        return SplitScores(metrics, ids, scores, {"signs": scores})


class Polarity(TextKind):
    """Whether a text is for or against: one output, its sign."""

    name = "po"
    facts = KindFacts("polarity", (SIGNS, MetricFacts("accuracy", "accuracy")))
    encoded = EncodedSigns
    columns = ("id", "text", "polarity")
    answer = "polarity"
    usual_answers = (("polarity",), ("sign",))
    output_names = ("for",)
    predicted: ClassVar = {"is_for": bool, "strength": float}
    does = "says whether a text is for or against"

    def parse(self, row, *, labels, template) -> AnsweredText:
        value = row.real("polarity")
        if value not in {-1.0, 1.0}:
            raise row.error(f"the polarity must be -1 or 1, not {value:g}")
        return AnsweredText(row.id(), self.text(row, template), value)

    def canonical(self, row, labels) -> dict[str, Any]:
        return {"polarity": float(row.value["polarity"])}

    def predict(self, finetuned, examples):
        outputs, num_cut = pooled_outputs(finetuned, examples)
        return [{"is_for": x > 0, "strength": abs(x)} for x in outputs[:, 0].tolist()], num_cut


class Longer(ExampleKind):
    """Which of two texts an encoder as it is puts farther from the origin."""

    name = "lo"
    facts = KindFacts("longer vector", (MetricFacts("wins", "wins"),), is_trained=False)
    columns = ("id", "better", "worse")

    def parse(self, row, *, labels, template):
        return AnsweredText(row.id(), f"{row.text('better')}\n{row.text('worse')}", 0.0)

    def inputs(self, task, split):
        for example in task.splits.get(split, ()):
            yield tuple(example.text.split("\n"))

    def encode(self, task, tokenizer, *, protocol) -> EncodedTask:
        return EncodedPairs(task, tokenizer, self.inputs(task, "test"))


class EncodedPairs(EncodedTask):
    """Pairs of texts, without anything to learn."""

    def __init__(self, task, tokenizer, pairs) -> None:
        self.info, self.pad_id, self._task = task.info, tokenizer.pad_id, task
        self.num_truncated = {}
        self._sequences = [
            np.array(tokenizer.encode(text), dtype=np.int64) for pair in pairs for text in pair
        ]

    def evaluate(self, encoder, head) -> dict[str, SplitScores]:
        better, worse = encoder.pooled(self._sequences).norm(dim=1).reshape(-1, 2).T
        wins = (better > worse).double().cpu().numpy()
        ids = tuple(example.id for example in self._task.splits["test"])
        return {"test": SplitScores({"wins": float(wins.mean())}, ids, wins, {"wins": wins})}


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
    assert result.results[0].about == Polarity.facts

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
    about = {kind.name: asdict(kind.facts) for kind in (Polarity, Longer)}
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
