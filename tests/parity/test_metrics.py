"""Metrics against independent references, ties and odd texts included."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from seqeval.metrics import classification_report
from seqeval.metrics import f1_score as seqeval_f1
from seqeval.scheme import IOB2
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from biphasic.tasks.metrics import (
    NO_PREDICTION,
    accuracy,
    answer_scores,
    entity_scores,
    macro_f1,
    matthews,
    pearson,
    question_metrics,
    retrieval_scores,
    rounding_ties,
    sentence_token_f1,
    spearman,
    top_documents,
)

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


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "f1"),
    [
        ("北京大学", "北京", 0.0, 2 * (2 / 4) * (2 / 2) / (2 / 4 + 2 / 2)),  # SQuAD's: 0
        ("「北京」。", "北京", 1.0, 1.0),  # SQuAD's exact match: 0
        ("東京タワー", "タワー", 0.0, 2 * (3 / 5) / (3 / 5 + 1)),  # three kana of five characters
        ("서울에서", "서울", 0.0, 2 * (2 / 4) / (2 / 4 + 1)),
        ("iPhone 6手机", "iphone手机", 0.0, 2 * (3 / 4) / (3 / 4 + 1)),  # iphone, 6, 手, 机
        ("the 2008年", "2008年", 0.0, 2 * (2 / 3) / (2 / 3 + 1)),  # articles stay
        ("2,008 年", "2008年", 1.0, 1.0),
        ("𠮷野家", "𠮷", 0.0, 2 * (1 / 3) / (1 / 3 + 1)),
        ("。", "北京", 0.0, 0.0),
        ("Straße", "STRASSE", 0.0, 0.0),  # in lower case, which keeps ß apart from ss
    ],
)
def test_answers_are_compared_by_characters_of_east_asia(prediction, answer, exact, f1):
    assert answer_scores(prediction, [answer], tokens="characters") == (exact, pytest.approx(f1))


def test_predictions_that_differ_by_rounding_alone_are_ties_on_the_scale_of_the_answers():
    rounding = 8 * float(np.finfo(np.float32).eps)
    predicted = 0.5 + 1.5 * rounding * np.array([-1, 0, 1])
    assert rounding_ties(predicted).tolist() == predicted.tolist()
    assert rounding_ties(predicted, scale=2.0).tolist() == [0.5] * 3


def test_squad_golden_cases_cover_what_they_should(squad_golden):
    cases = squad_golden["cases"]
    assert sum(0 < f1 < 1 for *_, f1 in cases) > 300
    assert sum(exact for *_, exact, _ in cases) > 1000
    assert sum(not answers for answers, *_ in cases) > 300
    assert sum(prediction == "" and bool(answers) for answers, prediction, *_ in cases) > 200
    assert sum(not (prediction or "x").isascii() for _, prediction, *_ in cases) > 500


def test_squad_means_over_all_and_over_both_parts_equal_the_reference_totals(squad_golden):
    names = {
        "f1": "f1",
        "exact_match": "exact",
        "has_answer_f1": "HasAns_f1",
        "has_answer_exact_match": "HasAns_exact",
        "no_answer_accuracy": "NoAns_exact",
    }
    for number, totals in enumerate(squad_golden["groups_of_50"]):
        group = squad_golden["cases"][50 * number : 50 * (number + 1)]
        scores = np.array([answer_scores(prediction, answers) for answers, prediction, *_ in group])
        metrics = question_metrics(scores, np.array([bool(answers) for answers, *_ in group]))
        assert totals["NoAns_total"]
        assert set(metrics) == set(names)
        for name, official in names.items():
            assert 100 * metrics[name] == pytest.approx(totals[official], rel=0, abs=1e-10)
        assert totals["NoAns_f1"] == totals["NoAns_exact"]


def test_squad_parts_without_questions_are_left_out():
    scores = np.array([[1.0, 1.0], [0.0, 0.5]])
    only_answerable = question_metrics(scores, np.array([True, True]))
    assert only_answerable == {"f1": 0.75, "exact_match": 0.5}
    none_answerable = question_metrics(scores, np.array([False, False]))
    assert set(none_answerable) == {"f1", "exact_match", "no_answer_accuracy"}


labels_and_predictions = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40
)


@given(labels_and_predictions)
def test_classification_metrics_equal_scikit_learn(pairs):
    labels, predicted = np.array(pairs).T
    assert accuracy(labels, predicted) == accuracy_score(labels, predicted)
    expected = f1_score(labels, predicted, average="macro", zero_division=0)
    assert macro_f1(labels, predicted) == expected


@given(labels_and_predictions)
def test_matthews_equals_scikit_learn(pairs):
    labels, predicted = np.array(pairs).T
    # Where both have one label scikit-learn warns beside giving 0.
    assume(len({*labels, *predicted}) > 1)
    assert matthews(labels, predicted) == matthews_corrcoef(labels, predicted)


def test_matthews_where_it_is_not_defined_and_by_hand():
    one, both = np.array([1, 1, 1, 1]), np.array([0, 1, 1, 1])
    assert matthews(one, one) == matthews(both, one) == matthews(one, both) == 0.0
    assert matthews(both, both) == 1.0
    # tp 2, tn 1, fp 0, fn 1: (2 * 1 - 0) / sqrt(2 * 3 * 1 * 2).
    assert matthews(both, np.array([0, 1, 1, 0])) == pytest.approx(2 / math.sqrt(12))


numbers = st.floats(-1000, 1000, width=32).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=40))
def test_correlations_equal_scipy_ties_included(pairs):
    values, predicted = np.array(pairs).T
    assume(len(set(values)) > 1 and len(set(predicted)) > 1)
    assert spearman(values, predicted) == stats.spearmanr(values, predicted).statistic
    assert pearson(values, predicted) == stats.pearsonr(values, predicted).statistic


def test_correlations_are_zero_where_they_are_not_defined():
    constant, rising = np.array([2.0, 2.0, 2.0]), np.array([1.0, 2.0, 4.0])
    for correlation in (spearman, pearson):
        assert correlation(rising, constant) == correlation(constant, rising) == 0.0
        assert correlation(rising[:1], rising[:1]) == 0.0
    assert spearman(rising, rising**3) == pytest.approx(1.0)
    assert pearson(rising, rising**3) < 0.99


def test_a_sentence_of_only_o_scores_one():
    # `O` counts as a class: 1 where it is all there is, and (1 + 0) / 2 of classes otherwise.
    only_o, mixed = np.array([0, 0]), np.array([0, 1])
    scores = sentence_token_f1([only_o, mixed], [only_o, np.array([0, 2])], num_labels=3)
    assert scores.tolist() == [1.0, pytest.approx((1 + 0 + 0) / 3)]


words_with_lost_ones = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4) | st.just(NO_PREDICTION)),
    min_size=1,
    max_size=20,
)


@given(st.lists(words_with_lost_ones, min_size=1, max_size=5))
def test_sentence_token_f1_is_scikit_learns_and_a_lost_word_is_missed_and_adds_no_label(sentences):
    labels = [np.array(pairs)[:, 0] for pairs in sentences]
    predicted = [np.array(pairs)[:, 1] for pairs in sentences]
    expected = [
        f1_score(
            gold,
            guess,
            labels=sorted({*gold, *guess} - {NO_PREDICTION}),
            average="macro",
            zero_division=0,
        )
        for gold, guess in zip(labels, predicted, strict=True)
    ]
    scores = sentence_token_f1(labels, predicted, num_labels=5)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-12)


def test_a_lost_word_whose_tag_is_o_is_not_right():
    # One of two `O` seen: recall 1/2, precision 1.
    scores = sentence_token_f1([np.array([0, 0])], [np.array([0, NO_PREDICTION])], num_labels=3)
    assert scores.tolist() == [pytest.approx(2 / 3)]
    lost = np.array([NO_PREDICTION])
    assert sentence_token_f1([np.array([0])], [lost], num_labels=3).tolist() == [0.0]


sentence_tags = st.lists(
    st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=12
)


@given(st.lists(sentence_tags, min_size=1, max_size=6))
def test_entities_equal_strict_seqeval_and_entities_counted_by_hand(sentences):
    tags = [[gold for gold, _ in sentence] for sentence in sentences]
    predicted = [[guess for _, guess in sentence] for sentence in sentences]
    scores = entity_scores(tags, predicted)
    assert scores.f1 == seqeval_f1(tags, predicted, mode="strict", scheme=IOB2, zero_division=0)
    gold, guess = _entities(tags), _entities(predicted)
    assert scores.f1 == pytest.approx(_f1_of_sets(gold, guess), abs=1e-12)
    for counts, found in (
        (scores.expected, gold),
        (scores.predicted, guess),
        (scores.right, gold & guess),
    ):
        assert counts.tolist() == [
            sum(entity[0] == number for entity in found) for number in range(len(sentences))
        ]

    # The table of types is that of seqeval's report.
    assert set(scores.by_type) == {entity[3] for entity in gold | guess}
    if not scores.by_type:
        assert scores.f1 == 0.0
        return
    report = classification_report(
        tags, predicted, mode="strict", scheme=IOB2, zero_division=0, output_dict=True
    )
    for name, row in scores.by_type.items():
        official = report[name]
        assert row == {
            "precision": official["precision"],
            "recall": official["recall"],
            "f1": official["f1-score"],
            "support": official["support"],
        }


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
    # Few documents (fewer than 10, too) and more than are ranked; ids in any script.
    num_documents = data.draw(st.integers(1, 12) | st.integers(95, 130))
    names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1)
    ids = data.draw(st.lists(names, min_size=num_documents, max_size=num_documents, unique=True))
    queries = data.draw(st.lists(names, min_size=3, max_size=3, unique=True))
    seed = data.draw(st.integers(0, 2**32 - 1))
    levels = data.draw(st.sampled_from([1, 2, 5, 1000]))
    share_judged = data.draw(st.sampled_from([0.02, 0.5, 1.0]))
    rng = np.random.default_rng(seed)
    # Coarse levels make ties; thirds are not exact in 32 bits.
    scores = (rng.integers(0, levels, (3, num_documents)) / np.float32(3)).astype(np.float32)
    # Grades 0 to 3; some queries have judged documents but none that is relevant.
    judged = {
        query: {name: int(rng.integers(0, 4)) for name in ids if rng.random() < share_judged}
        or {ids[0]: 0}
        for query in queries
    }
    raw = {
        query: {name: float(score) for name, score in zip(ids, row, strict=True)}
        for query, row in zip(queries, scores, strict=True)
    }
    measures = {"ndcg_cut.10", "recall.100", "recip_rank"}
    expected = pytrec_eval.RelevanceEvaluator(judged, measures).evaluate(raw)

    columns = sorted(range(num_documents), key=lambda column: ids[column], reverse=True)
    ranked = top_documents(scores[:, columns])
    rankings = {
        query: [ids[columns[place]] for place in row]
        for query, row in zip(queries, ranked, strict=True)
    }
    actual = retrieval_scores(rankings, judged)
    assert set(actual) == set(queries)
    for query, values in expected.items():
        assert actual[query]["ndcg_at_10"] == values["ndcg_cut_10"]
        assert actual[query]["recall_at_100"] == values["recall_100"]
        whole = values["recip_rank"]
        assert actual[query]["mrr_at_10"] == (whole if whole * 10.5 > 1 else 0.0)


def test_a_query_without_a_relevant_document_scores_zero_and_counts():
    scores = retrieval_scores({"q": ["a"], "r": ["a"]}, {"q": {"a": 0}, "r": {"a": 1}})
    assert set(scores["q"].values()) == {0.0}
    assert set(scores["r"].values()) == {1.0}


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
