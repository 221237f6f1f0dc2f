"""Contrastive losses and their gradients are those of sentence-transformers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from torch import nn
from transformers import BertModel

from biphasic import export_model
from biphasic.config import parse_config
from biphasic.data.pairs import Pair, Pairs, write_pairs
from biphasic.distributed import ALONE
from biphasic.errors import ConfigError, DataError, ModelError
from biphasic.export.card import corpora_of
from biphasic.model.loading.build import load_encoder, new_model
from biphasic.model.loading.hub import LocalModel, fetch_model
from biphasic.objectives.contrastive import Contrastive
from biphasic.objectives.loss import InfoNce
from biphasic.store import read_state_record
from biphasic.study.resolve import phase_data
from biphasic.study.settings.arms import recipe_name
from biphasic.tasks.embedding import Choices, embedding_settings, load_embedder
from biphasic.training.compute import ComputeConfig
from biphasic.training.heldout import HeldoutPairs
from biphasic.training.lineage import TrainingData
from biphasic.training.loop import coupled_backward
from biphasic.training.recipe import Recipe
from biphasic.training.run import first_model
from biphasic.training.step.input import StepInputs, StepRows, pass_loss
from biphasic.training.step.optimizer import set_precision
from families import tiny_config
from process_ranks import process_outcomes
from rounding import assert_as_exact, exactly
from short_runs import Killed, assert_close, assert_same, killing, metrics
from short_runs import train as short_train

pytestmark = pytest.mark.usefixtures("unprobed")

NUM_PAIRS, WIDTH = 6, 16


def vectors(count: int, *, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, WIDTH, generator=draw).requires_grad_()


def loss_of(num_negatives: int = 0, **settings: Any) -> InfoNce:
    """Different queries and documents: pair `n` is query `n` and document `n`."""
    columns = np.arange(NUM_PAIRS)
    known = np.eye(NUM_PAIRS, NUM_PAIRS * (1 + num_negatives), dtype=bool)
    pairs = np.stack([columns, columns], axis=1)
    plain = {"temperature": 0.05, "symmetric": False, "hardness": 0.0, "matryoshka": ()}
    return InfoNce("mean", NUM_PAIRS, pairs, known, **{**plain, **settings})


class Given(nn.Module):
    """A model whose vectors are given: sentence-transformers' losses ask for no more."""

    def get_embedding_dimension(self) -> int:
        return WIDTH

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": features["vectors"]}


@pytest.mark.parametrize("num_negatives", [0, 1, 3])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"temperature": 0.02}, {"scale": 50.0}),
        (
            {"symmetric": True},
            {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"},
        ),
        ({"hardness": 5.0}, {"hardness_mode": "all_negatives", "hardness_strength": 5.0}),
    ],
    ids=["plain", "temperature", "symmetric", "hardness"],
)
def test_losses_and_gradients_of_vectors_are_those_of_the_oracle(num_negatives, ours, theirs):
    given = vectors(NUM_PAIRS * (2 + num_negatives))
    own = loss_of(num_negatives, **ours)
    loss = own.summed(given, torch.arange(len(given))) / own.normaliser
    (gradient,) = torch.autograd.grad(loss, given)
    oracle = MultipleNegativesRankingLoss(Given(), **theirs)
    found = [[loss, gradient]]
    for precision in (torch.float32, torch.float64):
        again = given.detach().to(precision).requires_grad_()
        expected = oracle.compute_loss_from_embeddings([*again.split(NUM_PAIRS)], torch.tensor(0))
        found.append([expected, *torch.autograd.grad(expected, again)])
    assert_as_exact(*found)


def test_hardness_is_of_queries_alone():
    given = vectors(3 * NUM_PAIRS)

    def loss(**settings) -> torch.Tensor:
        return loss_of(1, **settings).summed(given, torch.arange(len(given)))

    there, there_hard = loss(), loss(hardness=5.0)
    both, both_hard = loss(symmetric=True), loss(symmetric=True, hardness=5.0)
    assert there_hard > there
    torch.testing.assert_close(both_hard - both, (there_hard - there) / 2)


def test_matryoshka_is_the_mean_over_the_widths():
    given = vectors(2 * NUM_PAIRS)
    own = loss_of(matryoshka=(4, 8))
    loss = own.summed(given, torch.arange(len(given))) / own.normaliser
    model = Given()
    oracle = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [WIDTH, 8, 4])
    expected, exact = (
        oracle([{"vectors": part} for part in each.split(NUM_PAIRS)], torch.tensor(0)) / 3
        for each in (given, given.double())
    )
    assert_as_exact([loss], [expected], [exact])


def test_other_answers_to_a_query_are_no_negatives():
    # Queries 0 and 1; query 0 has the documents 0 and 1, query 1 has document 2.
    known = np.array([[True, True, False], [False, False, True]])
    pairs = np.array([[0, 0], [0, 1], [1, 2]])
    own = replace(loss_of(temperature=0.5), num_queries=2, pairs=pairs, is_positive=known)
    unit = torch.nn.functional.normalize(vectors(5), dim=-1)
    logits = 2 * unit[:2] @ unit[2:].T
    # Pair (0, 0) competes with document 2 alone, and so does (0, 1).
    expected = sum(
        torch.logsumexp(logits[query, candidates], 0) - logits[query, candidates[0]]
        for query, candidates in ((0, [0, 2]), (0, [1, 2]), (1, [2, 0, 1]))
    )
    torch.testing.assert_close(own.summed(unit, torch.arange(5)), expected)


@pytest.fixture(scope="module")
def pairs(documents: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Two dozen pairs, each with two negatives."""
    texts = [f"{number} {documents[number % 60][1][:99]}" for number in range(96)]
    rows = [
        Pair(query, positive, tuple(negatives))
        for query, positive, *negatives in zip(*(texts[i::4] for i in range(4)), strict=True)
    ]
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs", rows, origin={})


def phase(pairs: Pairs, **changes: Any) -> dict[str, Any]:
    settings = {"objective": "contrastive", "pairs": str(pairs.folder), "batch": 8, "steps": 2}
    return {**settings, **changes}


class Padded(nn.Module):
    """The body of a model on padded rows with its own masks, and the mean of its states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.body = model.base_model

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        mask = features["attention_mask"]
        hidden = self.body(**features).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"sentence_embedding": mean}


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    ids = [row + [0] * (longest - len(row)) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize("num_negatives", [0, 2])
def test_gradients_of_weights_are_those_of_the_oracle_in_one_pass_and_in_several(
    pairs, training_data, make_recipe, num_negatives
):
    recipe = make_recipe(phase(pairs, hard_negatives=num_negatives), precision="fp32")
    data = replace(training_data, pairs={pairs.folder: pairs})
    model = first_model(recipe, data).double()  # as rounding in fp32 is as large as the tolerance
    gradients, losses = [], []
    for tokens in (None, 64):
        compute = ComputeConfig(max_tokens_per_pass=tokens)
        given = StepInputs(recipe, data, model, compute=compute).of(1)
        assert (len(given.passes) > 1) == (tokens is not None)
        weights = set_precision(model, "fp32")
        loss = coupled_backward(
            given, partial(pass_loss, model), weights,
            device=model.device, ranks=ALONE, divided=None,
        )  # fmt: skip
        losses.append(loss)
        gradients.append(taken(model))
    batch = given.batch
    spans = batch.packed.spans.tolist()
    sequences = [batch.packed.input_ids.reshape(-1)[start:end].tolist() for start, end in spans]
    documents = sequences[len(batch.queries) :]
    columns = [[sequences[query] for query, _ in batch.pairs]]
    columns.append([documents[positive] for _, positive in batch.pairs])
    rows = {row: place for place, row in enumerate(batch.documents.tolist())}
    by_query = {int(query): number for number, query in enumerate(pairs.queries)}
    for place in range(num_negatives):
        texts = (pairs.negatives(by_query[batch.queries[query]])[place] for query, _ in batch.pairs)
        columns.append([documents[rows[text]] for text in texts])
    theirs = new_padded(model)
    for oracle in (
        MultipleNegativesRankingLoss(nn.Sequential(Padded(theirs))),
        CachedMultipleNegativesRankingLoss(nn.Sequential(Padded(theirs)), mini_batch_size=3),
    ):
        theirs.zero_grad()
        expected = oracle([padded(column) for column in columns], torch.tensor(0))
        expected.backward()
        largest = max(float(grad.abs().max()) for grad in taken(theirs, keep=True).values())
        for loss, gradient in zip(losses, gradients, strict=True):
            torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=1e-6)
            assert gradient.keys() == taken(theirs, keep=True).keys()
            for name, grad in taken(theirs, keep=True).items():
                torch.testing.assert_close(gradient[name], grad, rtol=0, atol=1e-6 * largest)


def framed(data: TrainingData, text: str, max_seqlen: int) -> list[int]:
    ids = data.tokenizer.encode(text)[: max_seqlen - 2]
    return [data.tokenizer.bos_id, *ids, data.tokenizer.eos_id]


def taken(model: Any, *, keep: bool = False) -> dict[str, torch.Tensor]:
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    if not keep:
        model.zero_grad()
    return gradients


def new_padded(model: Any) -> Any:
    """The same weights, with transformers' own attention, from both sides."""
    config = type(model.config)(**{**model.config.to_dict(), "attn_implementation": "eager"})
    copy = new_model(config, init_seed=0)
    copy.double().load_state_dict(model.state_dict())
    copy.set_attn_implementation("eager")
    return copy


def saved_body(folder: Path, data: TrainingData) -> LocalModel:
    """A small BERT as sentence encoders are saved: without its language-model head."""
    BertModel(tiny_config("bert", vocab_size=data.tokenizer.vocab_size - 1)).save_pretrained(folder)
    return fetch_model(folder)


@pytest.mark.parametrize("has_head", [True, False])
def test_a_resumed_run_reads_the_same_pairs_and_ends_with_the_same_bits(
    pairs, training_data, make_recipe, train, tmp_path, has_head
):
    data = replace(training_data, pairs={pairs.folder: pairs})
    first = {"objective": "mlm", "steps": 2} if has_head else phase(pairs)
    phases = [first, phase(pairs, steps=5), phase(pairs, steps=2, batch=4, heldout_fraction=0.3)]
    model: Any = {} if has_head else {"model": {"pretrained": str(tmp_path / "body")}}
    recipe = make_recipe(*phases, **model)
    if not has_head:
        data = replace(data, pretrained=saved_body(tmp_path / "body", data))
    whole = train(recipe, "whole", data=data)
    measured = {"clm", "mlm", "contrastive"} if has_head else {"contrastive"}
    assert read_state_record(whole, identity=whole.name).heldout.keys() == measured
    if not has_head:
        names = load_file(whole / "model.safetensors").keys()
        assert names == dict(load_encoder(tmp_path / "body").named_parameters()).keys()
        more = make_recipe(*phases, {"objective": "clm", "steps": 1}, **model)
        with pytest.raises(ConfigError, match=r"phases\.3\.objective: clm needs"):
            train(more, "whole", data=data, start=9)
        with pytest.raises(ModelError, match="needed for clm: train it on pairs"):
            train(more, "other", data=data)
        with pytest.raises(ConfigError, match="minimal_pairs: the model was saved without"):
            train(recipe, "judged", data=data, options={"judge": lambda *_: pytest.fail("late")})
    options = {"checkpoint_every": 1}
    with pytest.raises(Killed):
        train(recipe, "cut", data=data, options={**options, "report": killing(8)})
    assert_same(train(recipe, "cut", data=data, options=options), whole)


def test_held_out_queries_are_read_in_no_step_and_their_loss_is_that_of_the_oracle(
    pairs, training_data, make_recipe
):
    data = replace(training_data, pairs={pairs.folder: pairs})
    recipe = make_recipe(phase(pairs, heldout_fraction=0.4, batch=4, steps=9), precision="fp32")
    read = map(StepRows(recipe, data).batch, range(9))
    trained = {int(query) for batch in read for query in batch.queries}
    held = set(pairs.queries.tolist()) - trained
    chosen = {  # by the definition: the first 8 bytes of BLAKE2b, as a share
        int(query)
        for query, pair in zip(pairs.queries, pairs, strict=True)
        if int.from_bytes(blake2b(pair.query.encode(), digest_size=16).digest()[:8]) < 0.4 * 2**64
    }
    assert held == chosen
    model = first_model(recipe, data)
    losses = [
        HeldoutPairs(recipe, data, ComputeConfig(max_tokens_per_pass=tokens)).evaluate(
            model, step=step, report=lambda _: None, loss=None
        )
        for tokens, step in ((None, 9), (64, 1), (None, 0))
    ]
    numbers = [number for number, query in enumerate(pairs.queries) if int(query) in held]
    texts = [pairs.pair(number) for number in numbers]
    columns = [
        [framed(data, text, recipe.max_seqlen) for text in column]
        for column in zip(*((p.query, p.positive, *p.negatives) for p in texts), strict=True)
    ]
    oracle = MultipleNegativesRankingLoss(nn.Sequential(Padded(new_padded(model))))
    with torch.no_grad():
        expected = float(oracle([padded(column) for column in columns], torch.tensor(0)))
    assert losses[0]["contrastive"] == pytest.approx(expected, rel=1e-5)
    assert losses[1]["contrastive"] == pytest.approx(expected, rel=1e-5)
    assert losses[2] == {}
    few = make_recipe(phase(pairs, heldout_fraction=1e-6))
    with pytest.raises(ConfigError, match=r"heldout_fraction: 1e-06 .* 0 of the 24 "):
        HeldoutPairs(few, data, ComputeConfig())


def test_a_run_does_not_resume_on_changed_pairs(pairs, training_data, make_recipe, train, tmp_path):
    folder = tmp_path / "changing"
    write_pairs(folder, pairs, origin={})
    on_pairs = {**phase(pairs, steps=4), "pairs": str(folder)}
    recipe = make_recipe({"objective": "mlm", "steps": 1}, on_pairs)
    options = {"checkpoint_every": 1}
    first = replace(training_data, pairs={folder: Pairs(folder)})
    with pytest.raises(Killed):
        train(recipe, "cut", data=first, options={**options, "report": killing(3)})
    shutil.rmtree(folder)
    write_pairs(folder, [*pairs][::-1], origin={})
    changed = replace(training_data, pairs={folder: Pairs(folder)})
    again = train(recipe, "cut", data=changed, options=options)
    assert_same(again, train(recipe, "whole", data=changed))
    assert again.name != train(recipe, "first", data=first).name


def test_an_epoch_reads_each_pair_once_in_any_number_of_phases(pairs, training_data, make_recipe):
    data = replace(training_data, pairs={pairs.folder: pairs})
    recipe = make_recipe(phase(pairs, steps=2), {"objective": "clm", "steps": 1}, phase(pairs))
    rows = StepRows(recipe, data)
    batches = [rows.batch(step) for step in (0, 1, 3)]
    queries = np.concatenate([batch.queries for batch in batches])
    assert sorted(queries) == sorted(pairs.queries)
    cold = StepRows(recipe, data).batch(3)
    assert cold.sha256() == batches[-1].sha256()


def test_each_epoch_has_its_own_order(pairs, training_data, make_recipe):
    data = replace(training_data, pairs={pairs.folder: pairs})
    rows = StepRows(make_recipe(phase(pairs, steps=6)), data)
    first, second = (
        np.concatenate([batch.queries[batch.pairs[:, 0]] for batch in map(rows.batch, steps)])
        for steps in (range(3), range(3, 6))
    )
    assert sorted(first) == sorted(second) == sorted(pairs.queries)
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": "text"}, "corpus: a phase that reads pairs has none"),
        ({"rows_per_step": 4}, "rows_per_step: a phase that reads pairs has none"),
    ],
)
def test_a_phase_with_pairs_has_no_other_text(pairs, make_recipe, changes, message):
    with pytest.raises(ConfigError, match=message):
        make_recipe(phase(pairs, **changes)).check()


def test_the_identity_has_the_content_of_the_pairs_and_every_setting(pairs, make_recipe):
    base = Contrastive(objective="contrastive", pairs=pairs.folder)
    elsewhere = base.model_copy(update={"pairs": Path("elsewhere")})
    assert base.determinants(0) == elsewhere.determinants(0)
    changes = {
        "batch": 32, "temperature": 0.1, "hard_negatives": 1, "symmetric": True, "hardness": 1.0,
        "pooling": "last", "attention": "causal", "query_prompt": "q: ", "document_prompt": "d: ",
        "matryoshka": (8,), "heldout_fraction": 0.1,
    }  # fmt: skip
    assert changes.keys() == Contrastive.model_fields.keys() - {"objective", "pairs"}
    for name, value in changes.items():
        raw = {"objective": "contrastive", "pairs": pairs.folder, name: value}
        other = parse_config(Contrastive, raw, where="test")
        assert other.determinants(0) != base.determinants(0), name


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"pooling": "first"}, {"pooling": "last", "attention": "causal"}])
def test_a_state_is_read_as_it_was_trained_here_and_in_sentence_transformers(
    pairs, training_data, make_recipe, train, tmp_path, how, warm
):
    data = replace(training_data, pairs={pairs.folder: pairs})
    trained = phase(pairs, query_prompt="find: ", **how)
    state = train(recipe := make_recipe(trained), "state", data=data)
    embedder = load_embedder(embedding_settings(state, Choices(prompt="query")))
    given = StepInputs(recipe, data, embedder.encoder.model, compute=ComputeConfig()).of(0)
    with torch.no_grad():
        expected = pass_loss(embedder.encoder.model, given.passes[0])  # the vectors of the step
    queries = given.batch.queries
    ours, _ = embedder.embed(pairs.texts(queries))
    order = given.passes[0].labels.argsort()[: len(queries)]
    np.testing.assert_allclose(ours, expected[order].numpy(), atol=2e-6)
    assert embedding_settings(state, Choices()).prefix == ""
    record = read_state_record(state, identity=state.name)
    *_, facts = corpora_of(record, store=state.parents[1])
    assert facts["pairs"]["num_pairs"] == len(pairs)  # what a card says
    folder = export_model(state, tmp_path / "out", format="sentence-transformers")
    model = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(model.encode_query(pairs.texts(queries)), ours, atol=1e-5)
    block = (folder / "README.md").read_text().split("```python\n")[1].partition("```")[0]
    exec(block.replace("OWNER/out", str(folder)), names := {})  # noqa: S102 - our own card
    texts = ["One text.", "Another, longer text."]  # those of the card
    np.testing.assert_allclose(names["embeddings"].detach(), model.encode(texts), atol=1e-5)
    again = load_embedder(embedding_settings(folder, Choices(prompt="query")))
    assert (again.settings.pooling, again.settings.causal) == (
        how.get("pooling", "mean"), "attention" in how
    )  # fmt: skip
    np.testing.assert_allclose(again.embed(pairs.texts(queries))[0], ours, atol=1e-5)


@pytest.mark.slow
def test_an_export_has_the_prompts_and_its_card_the_texts_that_were_cut(
    pairs, training_data, make_recipe, train, tmp_path, warm
):
    data = replace(training_data, pairs={pairs.folder: pairs})
    prompts = {"query_prompt": "query: ", "document_prompt": "text: "}
    state = train(make_recipe(phase(pairs, **prompts, max_seqlen=16)), "state", data=data)
    folder = export_model(state, tmp_path / "out", format="sentence-transformers")
    heads = [
        [name for name in load_file(each / "model.safetensors") if "head" in name]
        for each in (state, folder)
    ]
    assert heads == [["lm_head.weight"], []]  # transformers would warn of it
    model = SentenceTransformer(str(folder), device="cpu")
    assert {name: model.prompts[name] for name in ("query", "document")} == {
        "query": "query: ", "document": "text: "
    }  # fmt: skip
    [given] = pairs.texts([0])
    queries = model.encode_query([given]), model.encode([f"query: {given}"])
    np.testing.assert_array_equal(*queries)
    tokenizer = data.tokenizer
    texts = [f"query: {text}" for text in pairs.texts(np.unique(pairs.queries))]
    documents = {
        row for n in range(len(pairs)) for row in (pairs.positives[n], *pairs.negatives(n))
    }
    texts += [f"text: {text}" for text in pairs.texts(sorted(documents))]
    cut = sum(len(tokenizer.encode(text)) + 2 > 16 for text in texts)
    assert cut > 0
    assert f"Cut to 16 tokens: {cut} of {len(texts)} texts." in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"matryoshka": [65]}, "matryoshka: 65 dimensions are more than the model's 64"),
        ({"objective": "distill"}, "has no vectors of a teacher"),
        ({"objective": "margin_mse"}, "no negative with scores of a teacher"),
        (
            {"document_prompt": "read this: " * 99},
            r"document_prompt: its \d+ tokens leave no room for a text in \d+; shorten it",
        ),
    ],
)
def test_what_pairs_or_model_lack_is_said_before_an_earlier_phase_is_trained(
    pairs, training_data, make_recipe, train, changes, message
):
    data = replace(training_data, pairs={pairs.folder: pairs})
    recipe = make_recipe({"objective": "mlm", "steps": 2}, phase(pairs, **changes))
    with pytest.raises(ConfigError, match=message):
        train(recipe, "late", data=data, options={"report": lambda _: pytest.fail("trained")})


def test_a_plan_knows_the_pairs_by_their_content(pairs, make_recipe, training_data, tmp_path):
    recipe = make_recipe(phase(pairs))
    data = replace(training_data, pairs={pairs.folder: pairs})
    hashes = phase_data([recipe], None, tmp_path, [])
    assert hashes == data.fingerprint.corpora == {str(pairs.folder): pairs.content_hash}
    with pytest.raises(DataError, match="no finished pairs here"):
        phase_data([make_recipe({**phase(pairs), "pairs": str(tmp_path)})], None, tmp_path, [])


def test_names_have_the_folder_of_the_pairs_without_its_place(pairs, make_recipe):
    name = recipe_name(make_recipe(phase(pairs)))
    assert "contrastive.pairs.batch8" in name
    assert pairs.folder.parent.name.lower() not in name


PASSES, DIVIDED = {"max_tokens_per_pass": 64}, {"shard": "full"}
# Gradients are compared after the first step, so later ones need no way of their own. More ranks
# differ from two in nothing but the shares of the pairs and of the weights: each computes half.
WAYS = {
    2: {
        "first": {"one pass": {}, "divided": DIVIDED},
        "several": {"one pass": {}, "divided passes": DIVIDED | PASSES},
    },
    4: {"first": {"divided passes": DIVIDED | PASSES}},
}


def first_moments(state: Path) -> dict[str, torch.Tensor]:
    """AdamW's first moments: after one update, a tenth of its gradients."""
    stored = load_file(state / "optimizer.safetensors")
    return {name: value for name, value in stored.items() if name.endswith("exp_avg")}


def exact_moments(recipe: Recipe, data: TrainingData) -> dict[str, torch.Tensor]:
    """The same, of a first step by one process in fp64."""
    model = first_model(recipe, data).double()
    given = StepInputs(recipe, data, model, compute=ComputeConfig()).of(0)
    weights, alone = set_precision(model, "fp32"), {"ranks": ALONE, "divided": None}
    loss = partial(pass_loss, model)
    exactly(lambda: coupled_backward(given, loss, weights, device=model.device, **alone))
    gradients = taken(model)
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
    factor = min(1.0, 1.0 / (float(norm) + 1e-6))  # as torch clips
    return {f"{name}.exp_avg": 0.1 * factor * each for name, each in gradients.items()}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_the_losses_and_gradients_of_one_process(
    tmp_path, pairs, training_data, make_recipe, ranks
):
    data = replace(training_data, pairs={pairs.folder: pairs})
    settings = {"symmetric": True, "batch": 12, "heldout_fraction": 0.3}
    recipes = {
        "first": make_recipe(phase(pairs, steps=1, **settings), precision="fp32"),
        "several": make_recipe(
            {"objective": "mlm", "steps": 2}, phase(pairs, steps=3, **settings), precision="fp32"
        ),
    }
    alone = {name: short_train(recipes[name], data, tmp_path / name) for name in WAYS[ranks]}
    runs = [
        {
            "name": f"{which} {way}",
            "recipe": recipes[which].model_dump(mode="json"),
            "store": str(tmp_path / f"{which} {way}"),
            "compute": compute,
        }
        for which, ways in WAYS[ranks].items()
        for way, compute in ways.items()
    ]
    outcomes = process_outcomes(tmp_path / "ranks", data, runs, ranks=ranks)
    for name, of_ranks in outcomes.items():
        assert [set(outcome) for outcome in of_ranks] == [{"state", "reported"}] * ranks, of_ranks
        state, expected = Path(of_ranks[0]["state"]), alone[name.split()[0]]
        assert_close(state, expected)
        # The loss is of all pairs, not of a rank's.
        tolerance = 1e-6 if name.startswith("first") else 1e-5  # of later weights, that of AdamW
        for line, other in zip(metrics(state), metrics(expected), strict=True):
            if "loss" in line:
                assert line["loss"] == pytest.approx(other["loss"], rel=tolerance)
                assert line["supervised_tokens"] == other["supervised_tokens"]
            else:
                ours, theirs = (each["heldout"]["contrastive"] for each in (line, other))
                assert ours == pytest.approx(theirs, rel=1e-5)
        if name.startswith("first"):
            moments, others = first_moments(state), first_moments(expected)
            assert moments.keys() == others.keys()
            exact = exact_moments(recipes["first"], data)
            assert exact.keys() == moments.keys()
            assert_as_exact(*([each[key] for key in exact] for each in (moments, others, exact)))
