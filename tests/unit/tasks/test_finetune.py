"""Fine-tuning on tasks that a tiny model can learn in a second or two."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from biphasic.errors import ConfigError, ModelError
from biphasic.files import is_complete, read_json
from biphasic.model.build import architecture_config, new_model
from biphasic.model.presets import Architecture
from biphasic.records import ResultRecord, parse_record
from biphasic.tasks.encoding import Encoder, mean_pool, new_head
from biphasic.tasks.finetune import Finetuner, FinetuneRun, encode_task, finetune_group
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import (
    SPLITS,
    Answer,
    ClassificationTask,
    LabelledText,
    Question,
    QuestionTask,
    RetrievalTask,
    TaggedSentence,
    TaggingTask,
    TaskInfo,
)
from biphasic.tasks.results import write_result

SIZES = {"train": 192, "validation": 40, "test": 40}
FILLERS = ["the", "sat", "on", "mat", "and", "ran", "to", "with"]
ARCHITECTURE = Architecture(
    num_layers=2, hidden_size=32, intermediate_size=64, num_heads=2, num_key_value_heads=1
)
PROTOCOL = FinetuneProtocol(
    max_steps=60,
    max_epochs=10,
    batch_size=16,
    max_seqlen=64,
    max_question_tokens=8,
    window_overlap=8,
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model(tokenizer):
    config = architecture_config(
        ARCHITECTURE,
        vocab_size=tokenizer.vocab_size,
        max_seqlen=64,
        special_ids=tokenizer.special_ids,
    )
    return new_model(config, init_seed=0)


def info(kind, metric):
    return TaskInfo(f"tiny-{kind}", kind, "Tiny", metric, "0" * 64)


def filler(rng, low=3, high=9):
    return rng.choice(FILLERS, int(rng.integers(low, high))).tolist()


def classification_task():
    """Whether a sentence has a cat or a dog in it."""
    rng = np.random.default_rng(0)

    def draw(number):
        label = int(rng.integers(2))
        words = filler(rng)
        words.insert(int(rng.integers(len(words))), ("cat", "dog")[label])
        return LabelledText(str(number), " ".join(words), label)

    splits = {split: tuple(map(draw, range(size))) for split, size in SIZES.items()}
    return ClassificationTask(info("sc", "accuracy"), ("cat", "dog"), splits)


def tagging_task():
    """Paris is a place, Anna a person, and so is each word that follows."""
    rng = np.random.default_rng(1)

    def draw(number):
        words, tags = filler(rng, 1, 6), []
        tags = [0] * len(words)
        for _ in range(int(rng.integers(1, 3))):
            kind = int(rng.integers(2))
            words += [("Paris", "Anna")[kind], *filler(rng, 1, 4)]
            tags += [1 + 2 * kind] + [0] * (len(words) - len(tags) - 1)
        return TaggedSentence(str(number), tuple(words), tuple(tags))

    splits = {split: tuple(map(draw, range(size))) for split, size in SIZES.items()}
    labels = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    return TaggingTask(info("tc", "entity_f1"), labels, splits)


def question_task():
    """Who: Anna. Where: Paris. A quarter of the contexts have neither."""
    rng = np.random.default_rng(2)

    def draw(number):
        words, wanted = filler(rng, 4, 9), ("Anna", "Paris")[int(rng.integers(2))]
        if rng.random() < 0.75:
            words.insert(int(rng.integers(len(words))), wanted)
        context = " ".join(words)
        start = context.find(wanted)
        answers = (Answer(wanted, start),) if start >= 0 else ()
        return Question(str(number), {"Anna": "dog", "Paris": "cat"}[wanted], context, answers)

    splits = {split: tuple(map(draw, range(size))) for split, size in SIZES.items()}
    return QuestionTask(info("qa", "f1"), splits)


def retrieval_task():
    """Documents are a topic's word among others; a query is another word of the topic."""
    rng = np.random.default_rng(3)
    topics = [("cat", "1"), ("dog", "2"), ("Paris", "3"), ("Anna", "4"), ("Document", "5")]
    corpus, queries = {}, {}
    qrels: dict[str, dict[str, dict[str, int]]] = {split: {} for split in SPLITS}
    for number in range(60):
        word, _ = topics[number % 5]
        corpus[f"d{number}"] = " ".join([*filler(rng), word, word])
    for split, size in (("train", 100), ("validation", 20), ("test", 20)):
        for number in range(size):
            query = f"{split}{number}"
            queries[query] = f"{topics[number % 5][1]} {' '.join(filler(rng, 1, 4))}"
            relevant = {f"d{place}": 1 for place in range(60) if place % 5 == number % 5}
            qrels[split][query] = relevant
    return RetrievalTask(info("ir", "ndcg_at_10"), corpus, queries, qrels)


TASKS = {
    "sc": classification_task,
    "tc": tagging_task,
    "qa": question_task,
    "ir": retrieval_task,
}


def run_of(task, tokenizer, *, learning_rate=3e-3, seed=0, **changed):
    protocol = PROTOCOL.model_copy(update=changed)
    return FinetuneRun(
        encode_task(task, tokenizer, protocol=protocol), learning_rate, seed, protocol
    )


@pytest.mark.parametrize("kind", TASKS)
def test_learns_a_separable_task(model, tokenizer, kind):
    task = TASKS[kind]()
    trained = run_of(task, tokenizer)
    still = dataclasses.replace(trained, learning_rate=1e-9)
    result, floor = finetune_group(model, [trained, still])
    metric = task.info.metric
    assert result.status == floor.status == "finished"
    for split in ("validation", "test"):
        assert result.scores[split].metrics[metric] > 0.9
        assert floor.scores[split].metrics[metric] < 0.75
        assert all(0 <= value <= 1 for value in result.scores[split].metrics.values())
        assert len(result.scores[split].ids) == task.num_examples(split)
        assert len(set(result.scores[split].ids)) == len(result.scores[split].scores)


def same(first, second):
    for split in ("validation", "test"):
        one, two = first.scores[split], second.scores[split]
        assert one.metrics == two.metrics
        assert one.ids == two.ids
        assert one.scores.tobytes() == two.scores.tobytes()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", TASKS)
def test_a_run_after_another_equals_the_run_alone_bitwise(tokenizer, model, kind, precision):
    losses = []
    final = run_of(TASKS[kind](), tokenizer, seed=1, max_steps=12, precision=precision)
    before = dataclasses.replace(final, learning_rate=1e-2, seed=0)
    other = run_of(TASKS["sc"](), tokenizer, max_steps=3, precision=precision)
    initial = {name: value.clone() for name, value in model.state_dict().items()}

    def record(run, step, num_steps, loss):
        if run is final:
            losses.append((step, num_steps, loss))

    finetuner = Finetuner(model, precision=precision)
    alone = finetuner.run(final, progress=record)
    assert [entry[:2] for entry in losses] == [(step, 12) for step in range(1, 13)]
    for name, value in model.state_dict().items():
        assert torch.equal(value, initial[name].to(value.dtype)), name
    finetuner.run(other)
    finetuner.run(before)
    after = finetuner.run(final, progress=record)
    # Losses are compared too: scores of a tiny test could agree by chance.
    assert losses[12:] == losses[:12]
    same(alone, after)


def test_seeds_differ_in_their_head(model, tokenizer):
    """With one batch that holds all examples the order is no difference: the head is."""
    losses = {}

    def record(run, step, num_steps, loss):
        losses[run.seed] = loss

    runs = [
        run_of(TASKS["sc"](), tokenizer, seed=seed, max_steps=1, batch_size=192) for seed in (0, 1)
    ]
    list(finetune_group(model, runs, progress=record))
    assert abs(losses[0] - losses[1]) > 1e-4


def test_seeds_differ_in_head_and_order(model, tokenizer):
    losses: dict[int, list[float]] = {0: [], 1: []}
    runs = [run_of(TASKS["sc"](), tokenizer, seed=seed, max_steps=3) for seed in losses]

    def record(run, step, num_steps, loss):
        losses[run.seed].append(loss)

    list(finetune_group(model, runs, progress=record))
    assert losses[0] != losses[1]


def test_a_run_that_diverges_is_a_result_and_spoils_nothing(model, tokenizer, tmp_path):
    good = run_of(TASKS["sc"](), tokenizer, max_steps=5)
    bad = dataclasses.replace(good, learning_rate=1e30)
    first, diverged, again = finetune_group(model, [good, bad, good])
    assert (diverged.status, diverged.scores) == ("diverged", None)
    assert diverged.steps < 5
    same(first, again)
    write_result(tmp_path / "run", diverged, run_id="run", state="s")
    record = read_json(tmp_path / "run" / "result.json")
    assert (record["validation"], record["test"]) == (None, None)
    assert pq.read_table(tmp_path / "run" / "scores.parquet").num_rows == 0


def test_states_that_are_not_finite_after_the_last_step_diverge(model, tokenizer):
    run = run_of(TASKS["sc"](), tokenizer, max_steps=1, learning_rate=1e38)
    [result] = finetune_group(model, [run])
    assert (result.status, result.steps) == ("diverged", 1)


def test_a_loss_that_is_not_finite_diverges_even_where_gradients_are(model, tokenizer):
    run = run_of(TASKS["sc"](), tokenizer, max_steps=5)
    task = _WithLoss(run.task, lambda loss: loss + torch.inf)
    [result] = finetune_group(model, [dataclasses.replace(run, task=task)])
    assert result.status == "diverged"


class _WithLoss:
    """A task whose loss is changed."""

    def __init__(self, task, change):
        self._task, self._change = task, change

    def __getattr__(self, name):
        return getattr(self._task, name)

    def loss(self, *arguments):
        return self._change(self._task.loss(*arguments))


def test_precision_of_runs_and_weights_is_checked(model, tokenizer):
    run = run_of(TASKS["sc"](), tokenizer, precision="bf16")
    with pytest.raises(ConfigError, match="the run wants bf16"):
        Finetuner(model, precision="fp32").run(run)
    Finetuner(model, precision="bf16")
    with pytest.raises(ModelError, match="weights in fp32"):
        Finetuner(model, precision="bf16")


def test_words_lost_to_truncation_count_as_errors(model, tokenizer):
    """A model that is right wherever it looks still misses the entities that were cut."""
    sentence = TaggedSentence("1", ("Paris", *["the"] * 10, "Paris"), (1, *[0] * 10, 1))
    splits = dict.fromkeys(SPLITS, (sentence,))
    task = TaggingTask(info("tc", "entity_f1"), ("O", "B-LOC"), splits)
    scores = {}
    for max_seqlen in (64, 9):
        encoded = encode_task(
            task, tokenizer, protocol=PROTOCOL.model_copy(update={"max_seqlen": max_seqlen})
        )
        oracle = _Oracle(encoded.splits["test"])
        scores[max_seqlen] = encoded.evaluate(oracle, oracle)["test"].metrics["entity_f1"]
    # One of two entities found, none invented: precision 1, recall 1/2.
    assert scores == {64: 1.0, 9: pytest.approx(2 / 3)}


class _Oracle(nn.Module):
    """Stands for encoder and head: gives every word that has a token its true tag."""

    device = torch.device("cpu")

    def __init__(self, sentences):
        super().__init__()
        self.sentences = sentences

    def batches(self, sequences):
        [sequence], [positions] = sequences, self.sentences.positions
        states = torch.zeros(len(sequence), 2)
        for place, tag in zip(positions, self.sentences.tags[0], strict=True):
            if place >= 0:
                states[place, tag] = 1.0
        yield np.array([0]), states, np.array([[0, len(sequence)]])

    def forward(self, states):
        return states


def test_pooling_averages_each_sequence(model, tokenizer):
    hidden = torch.arange(12.0).view(6, 2)
    pooled = mean_pool(hidden, np.array([[3, 6], [0, 2]]))
    assert torch.allclose(pooled, torch.stack([hidden[3:].mean(0), hidden[:2].mean(0)]))


def test_packing_does_not_change_pooled_states(model, tokenizer):
    texts = ["the cat", "the dog ran to Paris with Anna and the cat", "Anna", "on the mat"]
    sequences = [
        np.array([tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]) for text in texts
    ]
    encoder = Encoder(model.eval(), pad_id=tokenizer.pad_id)
    with torch.inference_mode():
        together = encoder.pooled(sequences)
        alone = torch.cat([encoder.pooled([sequence]) for sequence in sequences])
    assert torch.allclose(together, alone, atol=1e-5)


def test_a_sequence_is_read_in_both_directions(model, tokenizer):
    """The last token changes the state of the first, and of no other sequence."""
    encoder = Encoder(model.eval(), pad_id=tokenizer.pad_id)
    ids = np.array([tokenizer.bos_id, *tokenizer.encode("the cat sat on the mat")])
    changed = ids.copy()
    changed[-1] = tokenizer.eos_id
    with torch.inference_mode():
        before, spans = encoder.states([ids, ids])
        after, _ = encoder.states([ids, changed])
    first, second = spans[:, 0]
    assert (before[second] - after[second]).abs().max() > 1e-4
    assert torch.equal(before[first], after[first])


def test_the_loss_of_questions_is_that_of_each_window_alone(model, tokenizer):
    encoded = encode_task(TASKS["qa"](), tokenizer, protocol=PROTOCOL)
    head = new_head(32, 2, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
    encoder = Encoder(model.eval(), pad_id=tokenizer.pad_id)
    expected = []
    for window in encoded.windows["train"][:6]:
        logits = head(encoder.states([window.sequence])[0])[: len(window.sequence)].double()
        chosen = logits.log_softmax(0)[list(window.target), [0, 1]]
        expected.append(-chosen.mean().item())
    loss = encoded.loss(encoder, head, np.arange(6))
    assert loss.item() == pytest.approx(sum(expected) / 6, rel=1e-5)


def test_similarities_are_scaled_cosines(tokenizer):
    """Pair i is at i * 90 degrees: cosines 1 and 0, so -log(e^2 / (e^2 + 1)) at scale 2."""
    encoded = encode_task(
        retrieval_task(), tokenizer, protocol=PROTOCOL.model_copy(update={"similarity_scale": 2.0})
    )
    pairs = encoded.pairs
    other = int(np.flatnonzero(pairs[:, 0] == 1)[0])  # query 1 is of another topic
    loss = encoded.loss(_Axes(), nn.Identity(), np.array([0, other]))
    assert loss.item() == pytest.approx(-math.log(math.exp(2) / (math.exp(2) + 1)), rel=1e-5)


class _Axes:
    """An encoder that gives the i-th query and the i-th document the i-th axis, at any length."""

    def states(self, sequences):
        half = len(sequences) // 2
        states = torch.cat([3.0 * torch.eye(half), 0.5 * torch.eye(half)])
        rows = np.arange(len(sequences))
        return states, np.stack([rows, rows + 1], axis=1)


def test_heads_are_normal_with_the_studys_deviation():
    head = new_head(4096, 8, generator=torch.Generator().manual_seed(0))
    assert float(head.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert not head.bias.detach().any()


def test_known_relevant_documents_are_no_negatives(tokenizer):
    """With one topic every document of the batch is relevant: nothing is left to push away."""
    qrels = {"a": {"d1": 1, "d2": 1}}
    task = RetrievalTask(
        info("ir", "ndcg_at_10"),
        {"d1": "the cat", "d2": "the dog", "d3": "Anna"},
        {"a": "mat", "b": "Paris"},
        {"train": qrels | {"b": {"d3": 1}}, "validation": qrels, "test": qrels},
    )
    encoded = encode_task(task, tokenizer, protocol=PROTOCOL)
    encoder, head = _Constant(), nn.Identity()
    assert encoded.loss(encoder, head, np.array([0, 1])).item() == 0.0
    # Equal similarities: query a chooses among {own, d3}, twice; b among all three.
    loss = encoded.loss(encoder, head, np.array([0, 1, 2])).item()
    assert loss == pytest.approx((2 * math.log(2) + math.log(3)) / 3)


class _Constant:
    """An encoder to which all sequences are the same."""

    def states(self, sequences):
        count = len(sequences)
        return torch.ones(count, 4), np.stack([np.arange(count), np.arange(1, count + 1)], axis=1)


def test_results_are_written_complete_and_as_the_reports_read_them(model, tokenizer, tmp_path):
    run = run_of(TASKS["qa"](), tokenizer, max_steps=2)
    [result] = finetune_group(model, [run])
    folder = tmp_path / "finetunes" / "abc"
    write_result(folder, result, run_id="abc", state="f00")
    assert is_complete(folder)
    record = parse_record(ResultRecord, read_json(folder / "result.json"), where="result.json")
    assert (record.id, record.state, record.task, record.steps) == ("abc", "f00", "tiny-qa", 2)
    assert record.test == result.scores["test"].metrics
    table = pq.read_table(folder / "scores.parquet").to_pydict()
    assert list(table) == ["split", "id", "score"]
    assert table["split"] == ["validation"] * 40 + ["test"] * 40
    assert table["score"][40:] == result.scores["test"].scores.tolist()
