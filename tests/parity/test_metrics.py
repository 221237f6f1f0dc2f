"""Metrics against independent references, ties and odd texts included."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score as seqeval_f1
from seqeval.scheme import IOB2
from sklearn.metrics import accuracy_score, f1_score

from biphasic.tasks.metrics import (
    accuracy,
    entity_f1,
    macro_f1,
    retrieval_scores,
    sentence_token_f1,
    top_documents,
)
from biphasic.tasks.squad import answer_scores

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
GOLDEN = Path(__file__).parent / "golden" / "squad.json.gz"


@pytest.fixture(scope="module")
def squad_golden():
    """Cases scored by transformers 4.57's squad_metrics (golden/make_squad.py)."""
    return json.loads(gzip.decompress(GOLDEN.read_bytes()))


def test_squad_scores_equal_the_reference_on_every_case(squad_golden):
    assert len(squad_golden["cases"]) >= 4000
    wrong = [
        (answers, prediction)
        for answers, prediction, exact, f1 in squad_golden["cases"]
        if answer_scores(prediction, answers) != (exact, f1)
    ]
    assert wrong == []


def test_squad_golden_cases_cover_what_they_should(squad_golden):
    cases = squad_golden["cases"]
    assert sum(0 < f1 < 1 for *_, f1 in cases) > 300
    assert sum(exact for *_, exact, _ in cases) > 1000
    assert sum(not answers for answers, *_ in cases) > 300
    assert sum(prediction == "" and bool(answers) for answers, prediction, *_ in cases) > 200
    assert sum(not (prediction or "x").isascii() for _, prediction, *_ in cases) > 500


def test_squad_means_equal_the_reference_totals(squad_golden):
    for number, totals in enumerate(squad_golden["groups_of_50"]):
        group = squad_golden["cases"][50 * number : 50 * (number + 1)]
        scores = [answer_scores(prediction, answers) for answers, prediction, *_ in group]
        assert 100 * sum(exact for exact, _ in scores) / len(group) == totals["exact"]
        assert 100 * sum(f1 for _, f1 in scores) / len(group) == totals["f1"]


labels_and_predictions = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40
)


@given(labels_and_predictions)
def test_classification_metrics_equal_scikit_learn(pairs):
    labels, predicted = np.array(pairs).T
    assert accuracy(labels, predicted) == accuracy_score(labels, predicted)
    expected = f1_score(labels, predicted, average="macro", zero_division=0)
    assert macro_f1(labels, predicted) == expected


@given(st.lists(labels_and_predictions, min_size=1, max_size=8))
def test_sentence_token_f1_is_scikit_learns_macro_f1_of_each_sentence(sentences):
    labels = [np.array(pairs)[:, 0] for pairs in sentences]
    predicted = [np.array(pairs)[:, 1] for pairs in sentences]
    expected = [
        f1_score(gold, guess, average="macro", zero_division=0)
        for gold, guess in zip(labels, predicted, strict=True)
    ]
    scores = sentence_token_f1(labels, predicted, num_labels=5)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-12)


def test_a_sentence_of_only_o_scores_one():
    # `O` counts as a class: 1 where it is all there is, and (1 + 0) / 2 of classes otherwise.
    only_o, mixed = np.array([0, 0]), np.array([0, 1])
    scores = sentence_token_f1([only_o, mixed], [only_o, np.array([0, 2])], num_labels=3)
    assert scores.tolist() == [1.0, pytest.approx((1 + 0 + 0) / 3)]


sentence_tags = st.lists(
    st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=12
)


@given(st.lists(sentence_tags, min_size=1, max_size=6))
def test_entity_f1_equals_strict_seqeval_and_entities_counted_by_hand(sentences):
    tags = [[gold for gold, _ in sentence] for sentence in sentences]
    predicted = [[guess for _, guess in sentence] for sentence in sentences]
    score = entity_f1(tags, predicted)
    assert score == seqeval_f1(tags, predicted, mode="strict", scheme=IOB2, zero_division=0)
    assert score == pytest.approx(_f1_of_sets(_entities(tags), _entities(predicted)), abs=1e-12)


def test_a_stray_inside_tag_begins_no_entity():
    # Gold has 2 entities; strictly 1 is found and nothing else is predicted: P 1/1, R 1/2.
    gold, guess = ["B-PER", "O", "B-LOC"], ["B-PER", "O", "I-LOC"]
    assert entity_f1([gold], [guess]) == pytest.approx(2 * 1 * 0.5 / 1.5)


def _entities(sentences: list[list[str]]) -> set[tuple[int, int, int, str]]:
    found = set()
    for number, tags in enumerate(sentences):
        for start, tag in enumerate(tags):
            if tag.startswith("B-"):
                end = start + 1
                while end < len(tags) and tags[end] == f"I-{tag[2:]}":
                    end += 1
                found.add((number, start, end, tag[2:]))
    return found


def _f1_of_sets(gold: set, guess: set) -> float:
    return 2 * len(gold & guess) / (len(gold) + len(guess)) if gold or guess else 0.0


@settings(deadline=None)
@given(st.data())
def test_retrieval_equals_pytrec_eval_on_raw_scores_with_ties(data):
    num_documents = data.draw(st.integers(1, 130))
    names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1)
    ids = data.draw(st.lists(names, min_size=num_documents, max_size=num_documents, unique=True))
    seed = data.draw(st.integers(0, 2**32 - 1))
    levels = data.draw(st.sampled_from([1, 2, 5, 1000]))
    rng = np.random.default_rng(seed)
    # Coarse levels make ties; thirds are not exact in 32 bits.
    scores = (rng.integers(0, levels, (3, num_documents)) / np.float32(3)).astype(np.float32)
    judged = {
        f"q{query}": {name: int(rng.integers(0, 3)) for name in ids if rng.random() < 0.5}
        or {ids[0]: 1}
        for query in range(3)
    }
    raw = {
        f"q{query}": {name: float(score) for name, score in zip(ids, row, strict=True)}
        for query, row in enumerate(scores)
    }
    measures = {"ndcg_cut.10", "recall.100"}
    expected = pytrec_eval.RelevanceEvaluator(judged, measures).evaluate(raw)

    columns = sorted(range(num_documents), key=lambda column: ids[column], reverse=True)
    ranked = top_documents(scores[:, columns])
    rankings = {
        f"q{query}": [ids[columns[place]] for place in row] for query, row in enumerate(ranked)
    }
    actual = retrieval_scores(rankings, judged)
    for query, values in expected.items():
        assert actual[query]["ndcg_at_10"] == values["ndcg_cut_10"]
        assert actual[query]["recall_at_100"] == values["recall_100"]


def test_retrieval_scores_by_hand():
    # Relevant at ranks 2 (gain 1) and 3 (gain 2): (1/log2(3) + 2/log2(4)) / (2 + 1/log2(3)).
    scores = retrieval_scores({"q": ["x", "a", "b"]}, {"q": {"a": 1, "b": 2}})
    expected = (1 / math.log2(3) + 2 / math.log2(4)) / (2 + 1 / math.log2(3))
    assert scores["q"]["ndcg_at_10"] == pytest.approx(expected)
    assert scores["q"]["mrr_at_10"] == 1 / 2
    assert scores["q"]["recall_at_100"] == 1.0


def test_reciprocal_rank_stops_at_ten():
    documents = [f"d{number:02}" for number in range(20)]
    assert retrieval_scores({"q": documents}, {"q": {"d09": 1}})["q"]["mrr_at_10"] == 1 / 10
    assert retrieval_scores({"q": documents}, {"q": {"d10": 1}})["q"]["mrr_at_10"] == 0.0


def test_top_documents_keeps_the_first_of_those_that_tie_at_the_border():
    scores = np.array([[1.0, 2.0, 1.0, 1.0, 3.0]])
    assert top_documents(scores, depth=3).tolist() == [[4, 1, 0]]
