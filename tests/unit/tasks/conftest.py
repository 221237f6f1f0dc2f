"""Two small tokenizers, a small model, and tasks that it learns in a second or two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedModel

from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.model.loading.build import architecture_config, new_model
from biphasic.model.shape import Architecture
from biphasic.tasks.folder import load_task
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, RetrievalTask, Task, TaskInfo
from custom_tasks import Store
from tiny_use import words, write_task

SIZES = {"train": 192, "validation": 40, "test": 40}
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
    tokens = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    tokens.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokens.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = {"bos": "[CLS]", "eos": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    trainer = trainers.WordPieceTrainer(
        vocab_size=160, special_tokens=["[UNK]", *special.values()], show_progress=False
    )
    tokens.train_from_iterator(
        [f"{TEXT} abcdefghijklmnopqrstuvwxyz naive 東京 , . ( )"] * 20, trainer
    )
    return TextTokenizer(tokens, special)


@pytest.fixture(scope="session")
def nfkc() -> TextTokenizer:
    """A Unigram as in XLM-RoBERTa: it makes several characters of one, and one of several."""
    tokens = Tokenizer(models.Unigram())
    tokens.normalizer = normalizers.NFKC()
    tokens.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens.decoder = decoders.Metaspace()
    special = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "mask": "<mask>"}
    trainer = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=[*special.values(), "<unk>"], unk_token="<unk>",  # noqa: S106
        show_progress=False,
    )  # fmt: skip
    text = f"{TEXT} abcdefghijklmnopqrstuvwxyz 東京都 각 éệ fi kg 1⁄2 , . ( )"
    tokens.train_from_iterator([text] * 20, trainer)
    return TextTokenizer(tokens, special)


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
        max_steps=40,
        max_epochs=10,
        batch_size=16,
        max_seqlen=64,
        max_question_tokens=8,
        window_overlap=8,
    )


@pytest.fixture(scope="session")
def tiny_tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], Task]]:
    """A builder of a tiny task for each kind."""
    base = tmp_path_factory.mktemp("tiny")
    folders = [write_task(base / kind, kind, SIZES) for kind in ("sc", "ml", "sr", "tc", "qa")]
    return {**{each.name: partial(load_task, each) for each in folders}, "ir": retrieval_task}


def retrieval_task() -> RetrievalTask:
    """Documents are a topic's word among others; a query is another word of the topic."""
    rng = np.random.default_rng(3)
    topics = [("cat", "1"), ("dog", "2"), ("Paris", "3"), ("Anna", "4"), ("Document", "5")]
    corpus, queries = {}, {}
    qrels: dict[str, dict[str, dict[str, int]]] = {split: {} for split in SPLITS}
    for number in range(60):
        word, _ = topics[number % 5]
        corpus[f"d{number}"] = " ".join([*words(rng, 3, 9), word, word])
    for split, size in (("train", 100), ("validation", 20), ("test", 20)):
        for number in range(size):
            query = f"{split}{number}"
            queries[query] = f"{topics[number % 5][1]} {' '.join(words(rng, 1, 4))}"
            relevant = {f"d{place}": 1 for place in range(60) if place % 5 == number % 5}
            qrels[split][query] = relevant
    info = TaskInfo("tiny-ir", "ir", "Tiny", "ndcg_at_10", "0" * 64)
    return RetrievalTask(info, corpus, queries, qrels)
