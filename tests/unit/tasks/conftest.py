"""Two small tokenizers, a small model, and tasks that it learns in a second or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedModel

from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.presets import Architecture
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import (
    SPLITS,
    Answer,
    ClassificationTask,
    Kind,
    LabelledText,
    MultiLabelTask,
    MultiLabelText,
    Question,
    QuestionTask,
    RegressionTask,
    RetrievalTask,
    ScoredText,
    TaggedSentence,
    TaggingTask,
    Task,
    TaskInfo,
)
from custom_tasks import Store

SIZES = {"train": 192, "validation": 40, "test": 40}
FILLERS = ["the", "sat", "on", "mat", "and", "ran", "to", "with"]
ARCHITECTURE = Architecture(
    num_layers=2, hidden_size=32, intermediate_size=64, num_heads=2, num_key_value_heads=1
)
TEXT = "the cat sat on the mat and the dog ran to Paris with Anna \n Question Document Query: "


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store that prepares custom tasks."""
    return Store(tmp_path / "store")


@pytest.fixture
def custom(tmp_path: Path) -> Path:
    """A folder for the files of a custom task."""
    folder = tmp_path / "mood"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    """A byte-level BPE of 320 tokens: long words and all rare characters take several."""
    return train_tokenizer([TEXT] * 20, vocab_size=320)


@pytest.fixture(scope="session")
def wordpiece() -> TextTokenizer:
    """A WordPiece as in uncased BERT: it drops accents, control characters and line breaks."""
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = {"bos": "[CLS]", "eos": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    trainer = trainers.WordPieceTrainer(
        vocab_size=160, special_tokens=["[UNK]", *special.values()], show_progress=False
    )
    words.train_from_iterator(
        [f"{TEXT} abcdefghijklmnopqrstuvwxyz naive 東京 , . ( )"] * 20, trainer
    )
    return TextTokenizer(words, special)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let a test compute with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model(tokenizer: TextTokenizer, one_thread: None) -> PreTrainedModel:
    """A random model of two layers, with one thread to run it."""
    config = architecture_config(
        ARCHITECTURE,
        vocab_size=tokenizer.vocab_size,
        max_seqlen=64,
        special_ids=tokenizer.special_ids,
    )
    return new_model(config, init_seed=0)


@pytest.fixture(scope="session")
def tiny_protocol() -> FinetuneProtocol:
    """Enough steps to learn a tiny task."""
    return FinetuneProtocol(
        max_steps=60,
        max_epochs=10,
        batch_size=16,
        max_seqlen=64,
        max_question_tokens=8,
        window_overlap=8,
    )


@pytest.fixture(scope="session")
def tiny_tasks() -> dict[str, Callable[[], Task]]:
    """A builder of a tiny task for each kind."""
    return {
        "sc": classification_task,
        "ml": multi_label_task,
        "sr": regression_task,
        "tc": tagging_task,
        "qa": question_task,
        "ir": retrieval_task,
    }


def info(kind: Kind, metric: str) -> TaskInfo:
    return TaskInfo(f"tiny-{kind}", kind, "Tiny", metric, "0" * 64)


def filler(rng: np.random.Generator, low: int = 3, high: int = 9) -> list[str]:
    return rng.choice(FILLERS, int(rng.integers(low, high))).tolist()


def classification_task() -> ClassificationTask:
    """Whether a sentence has a cat or a dog in it."""
    rng = np.random.default_rng(0)

    def draw(number: int) -> LabelledText:
        label = int(rng.integers(2))
        words = filler(rng)
        words.insert(int(rng.integers(len(words))), ("cat", "dog")[label])
        return LabelledText(str(number), " ".join(words), label)

    splits = {split: tuple(map(draw, range(size))) for split, size in SIZES.items()}
    return ClassificationTask(info("sc", "accuracy"), ("cat", "dog"), splits)


def multi_label_task() -> MultiLabelTask:
    """Which of three animals and names a sentence has in it."""
    rng = np.random.default_rng(5)
    labels = ("cat", "dog", "Anna")

    def draw(number: int) -> MultiLabelText:
        holds = tuple(np.flatnonzero(rng.random(3) < 0.4).tolist())
        words = rng.permutation([*filler(rng), *(labels[n] for n in holds)]).tolist()
        return MultiLabelText(str(number), " ".join(words), holds)

    splits = {split: tuple(map(draw, range(size))) for split, size in SIZES.items()}
    return MultiLabelTask(info("ml", "micro_f1"), labels, splits)


def regression_task() -> RegressionTask:
    """How many of eight words are cats: values around 140, ten apart."""
    rng = np.random.default_rng(4)

    def draw(number: int) -> ScoredText:
        cats = int(rng.integers(9))
        words = rng.permutation(["cat"] * cats + ["dog"] * (8 - cats)).tolist()
        return ScoredText(str(number), " ".join(words), 100.0 + 10 * cats)

    splits = {split: tuple(map(draw, range(size))) for split, size in SIZES.items()}
    return RegressionTask(info("sr", "spearman"), splits)


def tagging_task() -> TaggingTask:
    """Paris is a place, Anna a person, and so is each word that follows."""
    rng = np.random.default_rng(1)

    def draw(number: int) -> TaggedSentence:
        words = filler(rng, 1, 6)
        tags = [0] * len(words)
        for _ in range(int(rng.integers(1, 3))):
            kind = int(rng.integers(2))
            words += [("Paris", "Anna")[kind], *filler(rng, 1, 4)]
            tags += [1 + 2 * kind] + [0] * (len(words) - len(tags) - 1)
        return TaggedSentence(str(number), tuple(words), tuple(tags))

    splits = {split: tuple(map(draw, range(size))) for split, size in SIZES.items()}
    labels = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    return TaggingTask(info("tc", "entity_f1"), labels, splits)


def question_task() -> QuestionTask:
    """Who: Anna. Where: Paris. A quarter of the contexts have neither."""
    rng = np.random.default_rng(2)

    def draw(number: int) -> Question:
        words, wanted = filler(rng, 4, 9), ("Anna", "Paris")[int(rng.integers(2))]
        if rng.random() < 0.75:
            words.insert(int(rng.integers(len(words))), wanted)
        context = " ".join(words)
        start = context.find(wanted)
        answers = (Answer(wanted, start),) if start >= 0 else ()
        return Question(str(number), {"Anna": "dog", "Paris": "cat"}[wanted], context, answers)

    splits = {split: tuple(map(draw, range(size))) for split, size in SIZES.items()}
    return QuestionTask(info("qa", "f1"), splits)


def retrieval_task() -> RetrievalTask:
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
