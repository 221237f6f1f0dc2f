"""Negatives of a miner and vectors of a teacher, against sentence-transformers and MiniLM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MarginMSELoss, MSELoss
from sentence_transformers.util import mine_hard_negatives, pairwise_cos_sim, pairwise_dot_score
from torch import nn

from biphasic.data.pairs import Pair, Pairs, write_pairs
from biphasic.errors import ConfigError
from biphasic.files import read_json
from biphasic.objectives.loss import Distance, Margins
from biphasic.tasks.enrich import mine, teach
from biphasic.training.step.input import StepRows
from rounding import assert_as_exact
from short_runs import Killed, assert_same, killing
from tiny_use import link_model

pytestmark = pytest.mark.usefixtures("unprobed")

SUBJECTS = ["cats", "dogs", "rivers", "stars", "engines", "violins", "bread", "glaciers"]
FACTS = ["are described here at length", "occur in many old stories", "can be seen from a hill"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    rows = [
        Pair(f"what about {subject} that {fact}?", f"The {subject} {fact}.")
        for subject in SUBJECTS
        for fact in FACTS
    ]
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs", rows, origin={})


@pytest.fixture(scope="module")
def taught(pairs, minilm, tmp_path_factory) -> Pairs:
    return teach(pairs, minilm, tmp_path_factory.mktemp("taught") / "taught", width=8)


PROMPTS = {"query": "violins and glaciers: ", "other": "stars and engines: "}


@pytest.mark.parametrize("prompts", [{}, PROMPTS])
def test_mined_negatives_are_those_of_the_oracle(pairs, minilm, tmp_path, prompts):
    seen = []
    options = {"number": 3, "margin": 0.95, "depth": 10}
    plain = mine(pairs, minilm, tmp_path / "plain", **options, report=lambda *at: seen.append(at))
    assert dict.fromkeys(text for *_, text in seen) == {
        "embedding": None,
        "searching negatives": None,
    }
    assert seen[-1] == (len(pairs) - 1, len(pairs), "searching negatives")
    if prompts:
        minilm = str(
            link_model(
                Path(minilm),
                tmp_path / "model",
                modules=3,
                prompts=prompts,
                default_prompt_name="other",
            )
        )
    mined = mine(pairs, minilm, tmp_path / "mined", number=3, margin=0.95, depth=10)
    assert (mined.content_hash != plain.content_hash) == bool(prompts)
    columns = {"anchor": [p.query for p in pairs], "positive": [p.positive for p in pairs]}
    expected = mine_hard_negatives(
        Dataset.from_dict(columns),
        SentenceTransformer(minilm, device="cpu"),
        relative_margin=0.05,
        range_max=10,
        num_negatives=3,
        output_format="triplet",
        verbose=False,
    )
    by_query: dict[str, list[str]] = {}
    for row in expected:
        by_query.setdefault(row["anchor"], []).append(row["negative"])
    assert {p.query: [*p.negatives] for p in mined if p.negatives} == by_query
    assert sum(len(pair.negatives) for pair in mined) > 2 * len(pairs)
    again = mine(pairs, minilm, tmp_path / "mined", number=3, margin=0.95, depth=10)
    assert again.content_hash == mined.content_hash != pairs.content_hash
    with pytest.raises(ConfigError, match="holds other pairs"):
        mine(pairs, minilm, tmp_path / "mined", number=2, margin=0.95, depth=10)


def test_bm25_finds_negatives_with_the_words_of_the_query(pairs, tmp_path):
    mined = mine(pairs, "bm25", tmp_path / "mined", number=2, margin=0.95, depth=10)
    for pair in mined:
        assert 1 <= len(pair.negatives) <= 2
        assert pair.positive not in pair.negatives
        subject, fact = pair.query.removeprefix("what about ").rstrip("?").split(" that ")
        # Either the same fact of another subject, or another fact of the same subject.
        assert all((subject in text) != (fact in text) for text in pair.negatives)
    again = mine(pairs, "bm25", tmp_path / "again", number=2, margin=0.95, depth=10)
    assert again.content_hash == mined.content_hash
    with pytest.raises(ConfigError, match="holds other pairs"):
        mine(pairs, "bm25", tmp_path / "mined", number=1, margin=0.95, depth=10)


def test_vectors_are_the_teachers_and_their_similarities_stay(pairs, taught, minilm, tmp_path):
    seen = []
    whole = teach(pairs, minilm, tmp_path / "whole", report=lambda *at: seen.append(at))
    assert seen[-1][1:] == (whole.num_texts, "embedding")
    texts = whole.texts(range(whole.num_texts))
    theirs = SentenceTransformer(minilm, device="cpu").encode(texts)
    np.testing.assert_allclose(whole.vectors, theirs, atol=1e-5)
    reduced = taught.vectors @ taught.vectors.T
    assert np.corrcoef(reduced.ravel(), (theirs @ theirs.T).ravel())[0, 1] > 0.95
    assert len({pairs.content_hash, whole.content_hash, taught.content_hash}) == 3


class Given(nn.Module):
    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        unit = nn.functional.normalize(features["vectors"], dim=-1)
        return {"sentence_embedding": unit}


def test_the_distance_and_its_gradient_are_those_of_the_oracle(taught):
    targets = taught.vectors[:6].copy()
    vectors = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    own = Distance("mean", targets)
    order = torch.tensor([3, 0, 5, 1, 2, 4])  # as vectors lie in rows
    loss = own.summed(vectors[order], order) / own.normaliser
    (gradient,) = torch.autograd.grad(loss, vectors)
    found = [[loss, gradient]]
    for precision in (torch.float32, torch.float64):
        again = vectors.detach().to(precision).requires_grad_()
        goal = torch.from_numpy(targets).to(precision)
        expected = 8 * MSELoss(Given())([{"vectors": again}], goal)
        found.append([expected, *torch.autograd.grad(expected, again)])
    assert_as_exact(*found)


def phase(pairs: Pairs, **changes):
    return {"objective": "distill", "pairs": str(pairs.folder), "batch": 8, "steps": 6, **changes}


def test_a_resumed_distillation_ends_with_the_same_bits(
    pairs, minilm, training_data, make_recipe, train, tmp_path
):
    taught = teach(pairs, minilm, tmp_path / "taught", width=64)  # as wide as the model
    data = replace(training_data, pairs={taught.folder: taught})
    recipe = make_recipe(phase(taught), precision="fp32")
    whole = train(recipe, "whole", data=data)
    options = {"checkpoint_every": 1}
    with pytest.raises(Killed):
        train(recipe, "cut", data=data, options={**options, "report": killing(4)})
    assert_same(train(recipe, "cut", data=data, options=options), whole)


def test_a_teacher_of_another_width_and_none_are_one_line(
    pairs, taught, training_data, make_recipe, train
):
    for given, message in (
        (taught, "have 8 dimensions, the model's 64; make them with 'pairs teach --width 64'"),
        (pairs, "has no vectors of a teacher"),
    ):
        data = replace(training_data, pairs={given.folder: given})
        with pytest.raises(ConfigError, match=message):
            train(make_recipe(phase(given)), given.folder.name, data=data)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("num_negatives", [1, 3])
def test_margins_and_their_gradient_are_those_of_the_oracle(similarity, num_negatives):
    num_pairs, draw = 4, torch.Generator().manual_seed(2)
    vectors = torch.randn(num_pairs * (2 + num_negatives), 8, generator=draw).requires_grad_()
    scores = torch.randn(num_pairs, 1 + num_negatives, generator=draw)
    triples = [
        (pair, pair, (1 + place) * num_pairs + pair)
        for pair in range(num_pairs)
        for place in range(num_negatives)
    ]
    margins = (scores[:, :1] - scores[:, 1:]).flatten().numpy()
    own = Margins("mean", num_pairs, np.array(triples), margins, similarity)
    loss = own.summed(vectors, torch.arange(len(vectors))) / own.normaliser
    (gradient,) = torch.autograd.grad(loss, vectors)
    compare = {"cosine": pairwise_cos_sim, "dot": pairwise_dot_score}[similarity]
    oracle = MarginMSELoss(nn.Identity(), similarity_fct=compare)
    found = [[loss, gradient]]
    for precision in (torch.float32, torch.float64):
        again = vectors.detach().to(precision).requires_grad_()
        parts = [*again.split(num_pairs)]
        expected = oracle.compute_loss_from_embeddings(parts, scores.to(precision))
        found.append([expected, *torch.autograd.grad(expected, again)])
    assert_as_exact(*found)


def test_margins_are_those_of_the_scores_or_else_of_the_vectors(
    pairs, minilm, training_data, make_recipe, train, tmp_path
):
    mined = mine(pairs, "bm25", tmp_path / "mined", number=2, margin=0.95, depth=10)
    scored = write_pairs(
        tmp_path / "scored",
        (replace(p, scores=tuple(range(1 + len(p.negatives), 0, -1))) for p in mined),
        origin={},
    )
    taught = teach(mined, minilm, tmp_path / "taught")
    raw = {"objective": "margin_mse", "batch": 8, "steps": 3}
    for given in (scored, taught):
        data = replace(training_data, pairs={given.folder: given})
        recipe = make_recipe({**raw, "pairs": str(given.folder)}, precision="fp32")
        batch = StepRows(recipe, data).batch(1)
        rows = [batch.queries[batch.triples[:, 0]], *batch.documents[batch.triples[:, 1:].T]]
        by_text = {(pair.query, pair.positive): pair for pair in given}
        for margin, *places in zip(batch.margins, *rows, strict=True):
            query, positive, negative = given.texts(places)
            pair = by_text[query, positive]
            place = pair.negatives.index(negative)
            if given is scored:
                assert margin == 1 + place
            else:
                of_query, own, other = (given.vectors[row] for row in places)
                assert margin == pytest.approx(float(of_query @ own - of_query @ other), abs=1e-6)
        train(recipe, given.folder.name, data=data)
    data = replace(training_data, pairs={pairs.folder: pairs})
    with pytest.raises(ConfigError, match="no negative with scores of a teacher"):
        train(make_recipe({**raw, "pairs": str(pairs.folder)}), "none", data=data)


def test_a_step_without_a_margin_makes_no_update(
    pairs, training_data, make_recipe, train, tmp_path, monkeypatch
):
    """Other steps train, and batches without one are left out of the held-out loss."""
    monkeypatch.setattr("biphasic.training.heldout.HELDOUT_BATCH", 2)
    scored = {"negatives": ("something else",), "scores": (2.0, 1.0)}
    some = [replace(pair, **({} if n % 6 else scored)) for n, pair in enumerate(pairs)]
    given = write_pairs(tmp_path / "some", some, origin={})
    data = replace(training_data, pairs={given.folder: given})
    raw = {"objective": "margin_mse", "pairs": str(given.folder), "batch": 2, "steps": 8}
    recipe = make_recipe({**raw, "heldout_fraction": 0.3}, precision="fp32")
    numbers = [len(StepRows(recipe, data).batch(step).margins) for step in range(8)]
    assert 0 in numbers
    assert any(numbers)
    warnings: list[str] = []
    state = train(recipe, "some", data=data, options={"warn": warnings.append})
    named = [line.partition(" got no label")[0] for line in warnings]
    without = [step for step, number in enumerate(numbers) if not number]
    assert named == [f"step {step} makes no update: margin_mse" for step in without]
    assert read_json(state / "state.json")["heldout"]["margin_mse"] > 0
    with pytest.raises(ConfigError, match=r"heldout_fraction: no pair .* give a larger share"):
        train(make_recipe({**raw, "heldout_fraction": 0.1}), "none", data=data)
    # The only margin is that of a pair that is held out.
    few = (replace(pair, **({} if n else scored)) for n, pair in enumerate(pairs))
    given = write_pairs(tmp_path / "few", few, origin={})
    data = replace(training_data, pairs={given.folder: given})
    with pytest.raises(ConfigError, match="no negative with scores of a teacher to train on"):
        train(make_recipe({**raw, "pairs": str(given.folder), "heldout_fraction": 0.3}), data=data)
