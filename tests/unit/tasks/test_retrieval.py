"""Retrieval: which documents are read, the loss, and scores per query."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from biphasic.tasks.finetune import encode_task
from biphasic.tasks.kinds.retrieval import RetrievalLearner
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import RetrievalTask, TaskInfo

INFO = TaskInfo("t", "ir", "T", "ndcg_at_10", "0" * 64)
CORPUS = {"d1": "T. one", "d10": "ten", "d2": "two", "d9": "nine", "d5": "the cat sat on the mat"}
QUERIES = {"a": "Query: first", "b": "second"}
QRELS = {
    "train": {"a": {"d1": 1, "d2": 0}, "b": {"d2": 2, "d1": 1}},
    "validation": {"a": {"d9": 1}},
    "test": {"b": {"d1": 2, "d10": 0}, "a": {"d10": 1}},
}


def task(**changed):
    return dataclasses.replace(RetrievalTask(INFO, CORPUS, QUERIES, QRELS), **changed)


def encode(tokenizer, given, **settings):
    return encode_task(given, tokenizer, protocol=FinetuneProtocol(**settings))


def test_texts_are_read_as_they_are(tokenizer):
    encoded = encode(tokenizer, task())
    assert encoded.document_ids == ("d9", "d5", "d2", "d10", "d1")
    assert tokenizer.decode(encoded.documents[4][1:-1].tolist()) == "T. one"
    queries = [tokenizer.decode(ids[1:-1].tolist()) for ids in encoded.queries["test"]]
    assert queries == ["second", "Query: first"]
    # Documents judged 0 are no pairs.
    assert encoded.pairs.tolist() == [[0, 4], [1, 2], [1, 4]]
    assert encoded.searched.tolist() == [0, 1, 2, 3, 4]


def test_if_only_judged_documents_are_searched_no_others_are_read(tokenizer):
    encoded = encode(tokenizer, task(), retrieval_corpus="judged")
    # d2 is trained on and not searched; d5 is neither.
    assert encoded.document_ids == ("d9", "d2", "d10", "d1")
    assert [encoded.document_ids[index] for index in encoded.searched] == ["d9", "d10", "d1"]
    assert encoded.pairs.tolist() == [[0, 3], [1, 1], [1, 3]]


def test_what_was_cut_is_counted_by_split_and_for_the_corpus(tokenizer):
    encoded = encode(tokenizer, task(), max_seqlen=8)
    # "Query: first" takes more than 6 tokens, and so does d5; the other texts take fewer.
    assert len(tokenizer.encode("second")) <= 6 < len(tokenizer.encode(QUERIES["a"]))
    assert encoded.num_truncated == {"corpus": 0, "train": 1, "validation": 1, "test": 1}
    longer = task(corpus=CORPUS | {"d5": CORPUS["d5"] * 2})
    assert encode(tokenizer, longer, max_seqlen=8).num_truncated["corpus"] == 1


def test_zero_shot_has_nothing_to_train_on(tokenizer):
    given = task(info=dataclasses.replace(INFO, kind="zs"))
    encoded = encode(tokenizer, given, retrieval_corpus="judged")
    assert encoded.num_train == 0
    assert encoded.document_ids == ("d9", "d10", "d1")
    assert set(encoded.queries) == {"validation", "test"}


@pytest.mark.parametrize("kind", ["ir", "zs"])
def test_only_splits_with_judgements_are_scored(tokenizer, kind):
    given = task(info=dataclasses.replace(INFO, kind=kind), qrels={"test": QRELS["test"]})
    encoded = encode(tokenizer, given)
    assert encoded.num_train == 0
    scores = encoded.evaluate(_Rows(), nn.Identity())
    assert set(scores) == {"test"}


class _Rows:
    """An encoder to which the n-th text is the n-th of some directions in a half plane."""

    def pooled(self, sequences):
        angles = torch.arange(len(sequences)) * 0.3
        return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_every_query_has_its_scores(tokenizer):
    scores = encode(tokenizer, task()).evaluate(_Rows(), nn.Identity())["test"]
    # Documents at 0, 0.3, ... in the order d9 d5 d2 d10 d1; query b at 0, query a at 0.3: its
    # ranking is d5, then d9 and d2 (equal, up to rounding), then d10.
    assert scores.ids == ("b", "a")
    columns = {name: column.tolist() for name, column in scores.columns.items()}
    assert columns == {
        "ndcg_at_10": [pytest.approx(1 / math.log2(6)), pytest.approx(1 / math.log2(5))],
        "mrr_at_10": [1 / 5, 1 / 4],
        "recall_at_100": [1.0, 1.0],
    }
    assert scores.scores.tolist() == columns["ndcg_at_10"]
    for name, values in columns.items():
        assert scores.metrics[name] == pytest.approx(sum(values) / 2)


def test_each_query_finds_its_document_however_few_similarities_are_in_memory(
    tokenizer, monkeypatch
):
    """The n-th query and the n-th document, from the last id on, have one direction."""
    monkeypatch.setattr(
        RetrievalLearner, "similarities_at_once", 20
    )  # two queries, thrice, and one
    given = task(
        corpus={f"d{number}": "a" for number in range(9)},
        queries={f"q{number}": "a" for number in range(7)},
        qrels={"test": {f"q{number}": {f"d{8 - number}": 1} for number in range(7)}},
    )
    scores = encode(tokenizer, given).evaluate(_Rows(), nn.Identity())["test"]
    assert scores.scores.tolist() == [1.0] * 7


def test_similarities_are_scaled_cosines(tokenizer):
    """Cosines are 0.8 with a query's own document and 0.6 with the other: 16 and 12 at scale 20."""
    given = task(qrels=QRELS | {"train": {"a": {"d1": 1}, "b": {"d2": 1}}})
    encoded = encode(tokenizer, given)
    loss = encoded.loss(_Axes(), nn.Identity(), np.array([0, 1]))
    assert loss.item() == pytest.approx(math.log1p(math.exp(12 - 16)), rel=1e-5)


class _Axes:
    """An encoder that gives queries axes, and documents vectors between them, of any length."""

    def states(self, sequences):
        states = torch.cat([3.0 * torch.eye(2), 0.5 * torch.tensor([[0.8, 0.6], [0.6, 0.8]])])
        rows = np.arange(len(sequences))
        return states, np.stack([rows, rows + 1], axis=1)


def test_known_relevant_documents_are_no_negatives(tokenizer):
    """Of the documents of a batch that are relevant to a query only its own counts."""
    given = task(qrels=QRELS | {"train": {"a": {"d1": 1, "d2": 1}, "b": {"d9": 1}}})
    encoded = encode(tokenizer, given)
    encoder, head = _Constant(), nn.Identity()
    assert encoded.loss(encoder, head, np.array([0, 1])).item() == 0.0
    # Equal similarities: query a chooses among {own, d9}, twice; b among all three.
    loss = encoded.loss(encoder, head, np.array([0, 1, 2])).item()
    assert loss == pytest.approx((2 * math.log(2) + math.log(3)) / 3)


class _Constant:
    """An encoder to which all sequences are the same."""

    def states(self, sequences):
        count = len(sequences)
        return torch.ones(count, 4), np.stack([np.arange(count), np.arange(1, count + 1)], axis=1)


def test_an_epoch_is_as_many_pairs_as_training_reads(tokenizer):
    assert task().epoch_length() == encode(tokenizer, task()).num_train == 3
    assert task(qrels={"test": QRELS["test"]}).epoch_length() == 0
