"""Sequence classification: what is kept of each text."""

from __future__ import annotations

import torch
from torch import nn

from biphasic.tasks.kinds.classification import encode_classification
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ClassificationTask, LabelledText, TaskInfo


class Fixed:
    """An encoder whose pooled states are given logits."""

    def __init__(self, *logits):
        self.logits = torch.tensor(logits)

    def pooled(self, sequences):
        return self.logits[: len(sequences)]


def encode(tokenizer, *labels):
    texts = tuple(LabelledText(f"t{n}", "the cat", label) for n, label in enumerate(labels))
    info = TaskInfo("t", "sc", "T", "accuracy", "0" * 64)
    task = ClassificationTask(info, ("bad", "fair", "good"), dict.fromkeys(SPLITS, texts))
    return encode_classification(task, tokenizer, protocol=FinetuneProtocol())


def test_predictions_are_kept_by_name(tokenizer):
    encoded = encode(tokenizer, 0, 2, 2)
    logits = [3.0, 1.0, 0.0], [0.0, 1.0, 0.5], [-1.0, 0.0, 2.0]
    scores = encoded.evaluate(Fixed(*logits), nn.Identity())["test"]
    assert scores.columns["label"] == ["bad", "good", "good"]
    assert scores.columns["predicted"] == ["bad", "fair", "good"]
    assert list(scores.columns["correct"]) == [True, False, True]
    assert scores.scores.tolist() == [1.0, 0.0, 1.0]
    # F1 of bad 1, fair 0, good 2/3. Covariances over 9: right 3*2 - (1*1 + 0*1 + 2*1) = 3,
    # predicted 9 - 3 = 6, labels 9 - 5 = 4: 3 / sqrt(24).
    assert scores.metrics["accuracy"] == 2 / 3
    assert abs(scores.metrics["macro_f1"] - 5 / 9) < 1e-12
    assert abs(scores.metrics["matthews"] - 3 / 24**0.5) < 1e-12


def test_of_equal_logits_the_first_label_is_predicted(tokenizer):
    scores = encode(tokenizer, 1).evaluate(Fixed([0.0, 2.0, 2.0]), nn.Identity())["test"]
    assert scores.columns["predicted"] == ["fair"]
    # One label alone leaves the Matthews correlation undefined.
    assert scores.metrics == {"accuracy": 1.0, "macro_f1": 1.0, "matthews": 0.0}
