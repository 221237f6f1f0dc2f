"""Fine-tuning on tasks that a tiny model can learn in a second or two."""

from __future__ import annotations

import copy
import dataclasses
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from transformers import EuroBertConfig, EuroBertForSequenceClassification

from biphasic.errors import ConfigError, ModelError
from biphasic.files import digest
from biphasic.model.compute.forward import pooled
from biphasic.model.shape import Lora
from biphasic.tasks.encoding import Encoder, new_head
from biphasic.tasks.finetune import (
    Finetuner,
    FinetuneRun,
    batch_indices,
    encode_task,
    finetune_group,
    read_items,
)
from biphasic.tasks.kinds.questions import Answer, AnswerLearner, Question
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import SPLITS, ExampleTask, TaskInfo
from biphasic.training.step.weights import ShortTable

TRAINED = ("sc", "ml", "sr", "tc", "qa", "ir")


@pytest.fixture
def run_of(tokenizer, tiny_protocol, tiny_tasks):
    """Make a run on the tiny task of a kind, or on another task."""

    def make(task, *, learning_rate=3e-3, seed=0, **changed):
        if isinstance(task, str):
            task = tiny_tasks[task]()
        protocol = tiny_protocol.model_copy(update=changed)
        encoded = encode_task(task, tokenizer, protocol=protocol)
        return FinetuneRun(encoded, learning_rate, seed, protocol)

    return make


@pytest.mark.parametrize("kind", TRAINED)
def test_learns_a_separable_task(model, run_of, tiny_tasks, kind):
    task = tiny_tasks[kind]()
    [[(result, scores)]] = finetune_group(model, [run_of(task)])
    [[(floor, low)]] = finetune_group(model, [run_of(task, learning_rate=1e-9, max_steps=1)])
    metric = task.info.metric
    assert (result.task, result.trained_on) == (task.info.name, None)
    assert result.status == floor.status == "finished"
    for split in ("validation", "test"):
        assert result.score(split, metric) == scores[split].metrics[metric] > 0.9
        assert floor.score(split, metric) == low[split].metrics[metric] < 0.75
        assert set(KINDS[kind].facts.metric_keys) <= set(scores[split].metrics)
        assert all(-1 <= value <= 1 for value in scores[split].metrics.values())
        assert len(scores[split].ids) == task.num_examples(split)
        assert len(set(scores[split].ids)) == len(scores[split].scores)


def same(first, second):
    (_, first), (_, second) = first, second
    assert set(first) == set(second)
    for split in first:
        one, two = first[split], second[split]
        assert one.metrics == two.metrics
        assert one.ids == two.ids
        assert one.scores.tobytes() == two.scores.tobytes()
        for name, column in one.columns.items():
            assert list(column) == list(two.columns[name]), name
        assert one.by_type == two.by_type


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_lora_learns_with_the_encoder_frozen_to_the_bit(model, run_of, precision):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    changes = {"lora": Lora(rank=4), "precision": precision, "learning_rate": 1e-2}
    run, other = (run_of("sc", seed=seed, **changes) for seed in (0, 1))
    kept = []
    finetuner = Finetuner(model, precision=precision, lora=changes["lora"])
    first = finetuner.run(run, keep=kept.append)
    [(result, scores)] = first
    assert result.protocol["lora"]["rank"] == 4
    assert scores["test"].metrics["accuracy"] > 0.9
    (trained,) = kept
    assert trained.weights.keys() == before.keys()
    changed = {n for n, t in before.items() if not torch.equal(t, trained.weights[n])}
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert changed == {n for n in before if n.split(".")[-2] in targets}
    # A run between two changes nothing, and another seed begins with other numbers.
    for each in (other, run):
        finetuner.run(each, keep=kept.append)
    name = next(iter(changed))
    one, second, third = ({**each.weights}[name] for each in kept)
    assert torch.equal(one, third)
    assert not torch.equal(one, second)


def test_merged_lora_computes_what_was_trained(model, run_of):
    merged, trained, states = copy.deepcopy(model), {}, []
    lora = Lora(rank=4, alpha=7)
    run = run_of("sc", lora=lora, learning_rate=1e-2)
    probes = list(run.task.trained_sequences)[:4]

    def read(which):
        with torch.no_grad():
            states.append(Encoder(which.eval(), run.task.pad_id).states(probes)[0])

    def keep(finetuned):
        trained.update(finetuned.weights)
        read(model)

    read(model)
    Finetuner(model, precision="fp32", lora=lora).run(run, keep=keep)
    merged.load_state_dict(trained)
    read(merged)
    before, unmerged, after = states
    torch.testing.assert_close(after, unmerged, rtol=1e-5, atol=1e-5)
    assert (after - before).abs().max() > 0.1


@pytest.mark.parametrize(
    ("kind", "precision"),
    # Precision is the body's; kinds differ in what follows it, and `ml` and `sr` hardly from `sc`.
    [("sc", "fp32"), ("sc", "paper"), *((kind, "bf16") for kind in ("tc", "qa", "ir"))],
)
def test_a_run_after_another_equals_the_run_alone_bitwise(model, run_of, kind, precision):
    losses = []
    final = run_of(kind, seed=1, max_steps=6, precision=precision)
    before = dataclasses.replace(final, learning_rate=1e-2, seed=0)
    other = run_of("sc", max_steps=3, precision=precision)
    initial = {name: value.clone() for name, value in model.state_dict().items()}

    def record(run, step, num_steps, loss):
        if run is final:
            losses.append((step, num_steps, loss))

    finetuner = Finetuner(model, precision=precision)
    [alone] = finetuner.run(final, progress=record)
    assert [entry[:2] for entry in losses] == [(step, 6) for step in range(1, 7)]
    for name, value in model.state_dict().items():
        assert torch.equal(value, initial[name].to(value.dtype)), name
    finetuner.run(other)
    finetuner.run(before)
    [after] = finetuner.run(final, progress=record)
    # Losses are compared too: scores of a tiny test could agree by chance.
    assert losses[6:] == losses[:6]
    same(alone, after)


def test_seeds_differ_in_their_head(model, run_of):
    """With one batch that holds all examples the order is no difference: the head is."""
    losses = {}

    def record(run, step, num_steps, loss):
        losses[run.seed] = loss

    runs = [run_of("sc", seed=seed, max_steps=1, batch_size=192) for seed in (0, 1)]
    list(finetune_group(model, runs, progress=record))
    assert abs(losses[0] - losses[1]) > 1e-4


def test_few_examples_are_all_that_a_run_reads(model, run_of, tiny_tasks):
    """With the labels of the others exchanged, the run is the same."""
    task = tiny_tasks["sc"]()
    few = {"train_examples": 24, "max_epochs": 4, "batch_size": 8}
    read: set[int] = set()
    for step in range(3):
        size = task.num_examples("train")
        items = read_items(np.arange(size), num_examples=24, finetune_seed=0)
        read |= set(batch_indices(step, items=items, batch_size=8, finetune_seed=0).tolist())
    train = [
        example if index in read else dataclasses.replace(example, answer=1 - example.answer)
        for index, example in enumerate(task.splits["train"])
    ]
    changed = dataclasses.replace(task, splits={**task.splits, "train": tuple(train)})
    (first,), (second,) = (
        next(finetune_group(model, [run_of(each, **few)])) for each in (task, changed)
    )
    assert first[0].steps == 12
    same(first, second)
    ((_, every),) = next(finetune_group(model, [run_of(task, max_steps=12, batch_size=8)]))
    assert every["test"].scores.tobytes() != first[1]["test"].scores.tobytes()


class _Read(AnswerLearner):
    """Question answering that records the windows that a run reads."""

    def __init__(self, task, tokenizer, *, protocol):
        super().__init__(task, tokenizer, protocol=protocol)
        self.read = set()

    def loss(self, encoder, head, indices):
        self.read |= set(indices.tolist())
        return super().loss(encoder, head, indices)


def test_all_encoders_read_the_same_questions(model, tokenizer, wordpiece, tiny_protocol):
    """Whatever their tokenizer and the length of their windows; each with all of its windows."""
    questions = tuple(
        Question(f"q{number}", "cat", "the dog ran " * (1 + 5 * (number % 4)), (Answer("dog", 4),))
        for number in range(60)
    )
    info = TaskInfo("t", "qa", "T", "f1", "0" * 64)
    task = ExampleTask(info, dict.fromkeys(SPLITS, questions))
    read, windows = [], []
    for reader, max_seqlen in ((tokenizer, 64), (tokenizer, 48), (wordpiece, 24)):
        settings = {"train_examples": 16, "max_seqlen": max_seqlen, "max_epochs": 1}
        protocol = tiny_protocol.model_copy(update=settings)
        encoded = _Read(task, reader, protocol=protocol)
        list(finetune_group(model, [FinetuneRun(encoded, 1e-3, 0, protocol)]))
        of = [window.question for window in encoded.parts["train"].windows]
        read.append({of[window] for window in encoded.read})
        windows.append(len(encoded.read))
        assert encoded.read == {place for place, one in enumerate(of) if one in read[-1]}
    assert read[0] == read[1] == read[2]
    assert len(read[0]) == 16
    assert len(set(windows)) == 3


def test_a_run_that_diverges_is_a_result_and_spoils_nothing(model, run_of):
    good = run_of("sc", max_steps=5)
    bad = dataclasses.replace(good, learning_rate=1e30)
    (first,), (diverged,), (again,) = finetune_group(model, [good, bad, good])
    record, scores = diverged
    assert (record.status, scores) == ("diverged", {})
    assert record.steps < 5
    same(first, again)


def test_states_that_are_not_finite_after_the_last_step_diverge(model, run_of):
    run = run_of("sc", max_steps=1, learning_rate=1e38)
    [[(result, _)]] = finetune_group(model, [run])
    assert (result.status, result.steps) == ("diverged", 1)


def test_a_loss_that_is_not_finite_diverges_even_where_gradients_are(model, run_of):
    run = run_of("sc", max_steps=5)
    task = _WithLoss(run.task, lambda loss: loss + torch.inf)
    [[(result, _)]] = finetune_group(model, [dataclasses.replace(run, task=task)])
    assert result.status == "diverged"


class _WithLoss:
    """A task whose loss is changed."""

    def __init__(self, task, change):
        self._task, self._change = task, change

    def __getattr__(self, name):
        return getattr(self._task, name)

    def loss(self, *arguments):
        return self._change(self._task.loss(*arguments))


@pytest.mark.parametrize("kind", TRAINED)
def test_a_short_table_of_embeddings_changes_nothing(model, run_of, kind, monkeypatch):
    losses = []
    run = run_of(kind, max_steps=6)

    def record(run, step, num_steps, loss):
        losses.append(loss)

    [[(_, short)]] = finetune_group(model, [run], progress=record)

    @contextmanager
    def whole_table(_embedding, weights, _token_ids):
        yield ShortTable(weights)

    monkeypatch.setattr("biphasic.tasks.finetune.short_table", whole_table)
    [[(_, whole)]] = finetune_group(model, [run], progress=record)
    # Only the norm of the gradient is summed in another order.
    assert losses[:6] == pytest.approx(losses[6:], rel=1e-5)
    for split, scores in whole.items():
        assert short[split].metrics == pytest.approx(scores.metrics, rel=1e-3)


def test_precision_of_runs_and_weights_is_checked(model, run_of):
    run = run_of("sc", precision="bf16")
    with pytest.raises(ConfigError, match="the run needs bf16"):
        Finetuner(model, precision="fp32").run(run)
    Finetuner(model, precision="bf16")
    with pytest.raises(ModelError, match="weights in fp32"):
        Finetuner(model, precision="bf16")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "paper"])
def test_head_and_body_have_the_precision_of_the_run(model, run_of, precision):
    found = {}
    run = run_of("sc", max_steps=1, precision=precision)

    def look(encoder, head, indices):
        found["head"] = head.weight.dtype
        found["body"] = {parameter.dtype for parameter in encoder.model.parameters()}
        return run.task.loss(encoder, head, indices)

    spied = _WithLoss(run.task, lambda loss: loss)
    spied.loss = look
    Finetuner(model, precision=precision).run(dataclasses.replace(run, task=spied))
    assert found["head"] == (torch.bfloat16 if precision == "paper" else torch.float32)
    assert (torch.float32 in found["body"]) == (precision != "paper")
    assert (torch.bfloat16 in found["body"]) == (precision != "fp32")


def test_pooling_averages_each_sequence():
    hidden = torch.arange(12.0).view(6, 2)
    means = pooled(hidden, np.array([[3, 6], [0, 2]]))
    assert torch.allclose(means, torch.stack([hidden[3:].mean(0), hidden[:2].mean(0)]))


def test_heads_are_normal_with_the_studys_deviation():
    head = new_head(4096, 8, generator=torch.Generator().manual_seed(0))
    assert float(head.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert not head.bias.detach().any()
    dense = new_head(512, 8, is_dense=True, generator=torch.Generator().manual_seed(0))
    for name, parameter in dense.named_parameters():
        expected = 0.02 if name.endswith("weight") else 0
        assert float(parameter.detach().std()) == pytest.approx(expected, rel=0.05)


def test_a_dense_head_is_that_of_the_studys_class():
    """EuroBERT's class reads padded texts here, with mean pooling."""
    config = EuroBertConfig(
        vocab_size=9, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_labels=3, classifier_pooling="mean", pad_token_id=0,
        mask_token_id=8, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    theirs = EuroBertForSequenceClassification(config).eval()
    ours = new_head(16, 3, is_dense=True, generator=torch.Generator().manual_seed(0))
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if "model." not in k})
    ids, mask = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]]), torch.ones(2, 4, dtype=torch.int64)
    mask[1, 3] = 0
    with torch.inference_mode():
        states = theirs.model(ids, attention_mask=mask).last_hidden_state
        logits = ours(pooled(states.flatten(0, 1), np.array([[0, 4], [4, 7]])))
        expected = theirs(ids, attention_mask=mask).logits
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("kind", ["sc", "sr"])
def test_a_dense_head_learns(model, run_of, tiny_tasks, kind):
    task, kept = tiny_tasks[kind](), []
    run = run_of(task, head="dense", learning_rate=1e-2)
    [[(result, _)]] = finetune_group(model, [run], keep=lambda trained: kept.append(trained.head))
    assert result.score("test", task.info.metric) > 0.9
    width = model.config.hidden_size
    assert kept[0]["dense.weight"].shape == (width, width)


def another_retrieval(task, name):
    """Other queries over a part of the documents, without training pairs."""
    judged = dict(list(task.qrels["validation"].items())[:7])
    qrels = {"validation": judged, "test": judged}
    queries = {query: f"{task.queries[query]} {name}" for query in judged}
    info = dataclasses.replace(task.info, name=name, trained_on=task.info.name, sha256=digest(name))
    return dataclasses.replace(task, info=info, queries=queries, qrels=qrels)


def test_several_tasks_are_scored_after_one_fine_tuning(model, run_of, tiny_tasks):
    task = tiny_tasks["ir"]()
    run = run_of(task, max_steps=8)
    others = [run_of(another_retrieval(task, name)).task for name in ("one", "two")]
    together = dataclasses.replace(run, evaluations=(others[0], run.task, others[1]))
    results, [alone], [second] = finetune_group(
        model, [together, run, dataclasses.replace(run, evaluations=(others[1],))]
    )
    names = [(record.task, record.trained_on, record.steps) for record, _ in results]
    assert names == [("one", "tiny-ir", 8), ("tiny-ir", None, 8), ("two", "tiny-ir", 8)]
    assert results[0][0].num_truncated == {"corpus": 0, "validation": 0, "test": 0}
    # What a task scores does not depend on what else is scored.
    same(results[1], alone)
    same(results[2], second)
    still = dataclasses.replace(run, learning_rate=1e-9, evaluations=(others[1],))
    [[(_, floor)]] = finetune_group(model, [still])
    assert not np.array_equal(floor["test"].scores, second[1]["test"].scores)


def test_a_diverged_run_is_a_result_for_every_task(model, run_of, tiny_tasks):
    task = tiny_tasks["ir"]()
    run = run_of(task, max_steps=5, learning_rate=1e30)
    other = run_of(another_retrieval(task, "one")).task
    [results] = finetune_group(model, [dataclasses.replace(run, evaluations=(run.task, other))])
    assert [(record.task, record.status, scores) for record, scores in results] == [
        ("tiny-ir", "diverged", {}),
        ("one", "diverged", {}),
    ]


def zero_shot(task):
    info = dataclasses.replace(task.info, name="tiny-zs", kind="zs")
    return dataclasses.replace(task, info=info)


def test_zero_shot_takes_no_step_and_scores_the_model_as_it_is(model, run_of, tiny_tasks):
    task = tiny_tasks["ir"]()
    steps = []
    run = run_of(zero_shot(task), learning_rate=0.0)
    [[result]] = finetune_group(model, [run], progress=lambda *report: steps.append(report))
    assert (result[0].status, result[0].steps, steps) == ("finished", 0, [])
    still = run_of(task, learning_rate=1e-30, max_steps=1)
    [[floor]] = finetune_group(model, [still])
    same(result, floor)


def test_zero_shot_needs_neither_training_nor_validation(model, run_of, tiny_tasks):
    task = zero_shot(tiny_tasks["ir"]())
    whole = run_of(task)
    part = run_of(dataclasses.replace(task, qrels={"test": task.qrels["test"]}))
    ((_, both),), ((_, test),) = finetune_group(model, [whole, part])
    assert (set(both), set(test)) == ({"validation", "test"}, {"test"})
    assert both["test"].scores.tobytes() == test["test"].scores.tobytes()


def test_a_task_without_training_split_is_not_taken_for_fine_tuned(model, run_of, tiny_tasks):
    run = run_of(another_retrieval(tiny_tasks["ir"](), "one"))
    with pytest.raises(ConfigError, match="task 'one': no training split"):
        Finetuner(model, precision="fp32").run(run)


def test_a_head_of_another_task_is_not_used(model, run_of):
    run = dataclasses.replace(run_of("sc"), evaluations=(run_of("tc").task,))
    with pytest.raises(ConfigError, match=r"'tiny-tc' .*scored after .* 'tiny-sc'"):
        Finetuner(model, precision="fp32").run(run)
