"""The real weights of a small encoder, on real texts, against the libraries it is usually run by.

Skipped where the package with the weights or the development data are absent.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.testing import assert_close
from transformers import AutoTokenizer

from biphasic.data.packing import Batching
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.model.loading.build import load_encoder
from biphasic.tasks.encoding import Encoder, encode_texts
from biphasic.tasks.finetune import encode_task
from biphasic.tasks.kinds.questions import Answer, Question
from biphasic.tasks.kinds.tagging import TaggedSentence
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, RetrievalTask, TaskInfo

# Beside the checkout; none of it is part of the project.
DATA = Path(__file__).parents[2].parent / "shared" / "data" / "tasks"
MAX_SEQLEN = 64
NUM_QUERIES, NUM_DOCUMENTS = 20, 60
NUM_SENTENCES, NUM_QUESTIONS = 200, 100
TOLERANCE = 1e-5  # of states up to 2, and of unit vectors


@pytest.fixture(scope="module")
def tokenizer(minilm: str) -> TextTokenizer:
    return TextTokenizer.load(Path(minilm))


def lines(name: str) -> list[dict[str, Any]]:
    """Read a JSON lines file of the development data."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"the development data are absent ({name})")
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def info(kind: Any, metric: str) -> TaskInfo:
    return TaskInfo(name=kind, kind=kind, title=kind, metric=metric, sha256="")


def encoder(folder: str, tokenizer: TextTokenizer, *, batching: Batching = "packed") -> Encoder:
    return Encoder(load_encoder(folder, batching=batching).eval(), pad_id=tokenizer.pad_id)


def sentence_transformer(folder: str) -> Any:
    """Load the same folder as its makers mean it: mean of all tokens, normalised."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu")
    model.max_seq_length = MAX_SEQLEN
    return model


@torch.inference_mode()
def pooled(folder: str, tokenizer: TextTokenizer, texts: list[str], batching: Batching) -> Tensor:
    sequences, cut = encode_texts(texts, tokenizer, max_seqlen=MAX_SEQLEN)
    assert any(cut)
    return encoder(folder, tokenizer, batching=batching).pooled(sequences)


def test_pooled_states_equal_padded_ones_and_theirs(minilm, tokenizer):
    texts = [row["text"] for row in lines("ir/scifact/queries.jsonl")[:20]]
    texts += [row["text"] for row in lines("ir/scifact/corpus.jsonl")[:10]]
    packed = pooled(minilm, tokenizer, texts, "packed")
    assert_close(packed, pooled(minilm, tokenizer, texts, "padded"), atol=TOLERANCE, rtol=0)
    theirs = sentence_transformer(minilm).encode(texts, convert_to_tensor=True)
    assert_close(normalize(packed, dim=-1), theirs, atol=TOLERANCE, rtol=0)


def scifact_part() -> RetrievalTask:
    """A part of the test split that is still hard: queries, their documents, and some more."""
    qrels: dict[str, dict[str, int]] = {}
    queries = {row["_id"]: row["text"] for row in lines("ir/scifact/queries.jsonl")}
    rows = (DATA / "ir/scifact/qrels/test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    for query, document, score in (row.split("\t") for row in rows):
        if query in qrels or len(qrels) < NUM_QUERIES:
            qrels.setdefault(query, {})[document] = int(score)
    judged = {document for documents in qrels.values() for document in documents}
    texts = {
        row["_id"]: f"{row['title']} {row['text']}" for row in lines("ir/scifact/corpus.jsonl")
    }
    others = (document for document in texts if document not in judged)
    kept = [*sorted(judged), *islice(others, NUM_DOCUMENTS - len(judged))]
    return RetrievalTask(
        info=info("zs", "ndcg_at_10"),
        corpus={document: texts[document] for document in kept},
        queries={query: queries[query] for query in qrels},
        qrels={"test": qrels},
    )


def test_zero_shot_retrieval_equals_sentence_transformers(minilm, tokenizer):
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    task = scifact_part()
    evaluator = InformationRetrievalEvaluator(
        queries=dict(task.queries),
        corpus=dict(task.corpus),
        relevant_docs={query: set(judged) for query, judged in task.qrels["test"].items()},
        ndcg_at_k=[10], mrr_at_k=[10], precision_recall_at_k=[100],
    )  # fmt: skip
    theirs = evaluator(sentence_transformer(minilm))

    protocol = FinetuneProtocol(max_seqlen=MAX_SEQLEN)
    encoded = encode_task(task, tokenizer, protocol=protocol)
    assert encoded.num_truncated["corpus"] > NUM_DOCUMENTS / 2
    with torch.inference_mode():
        ours = encoded.evaluate(encoder(minilm, tokenizer), nn.Identity())["test"].metrics
    assert 0.5 < ours["ndcg_at_10"] < 0.95
    for name, key in (("ndcg_at_10", "ndcg@10"), ("mrr_at_10", "mrr@10")):
        assert round(ours[name], 4) == round(theirs[f"cosine_{key}"], 4)
    assert ours["recall_at_100"] == pytest.approx(theirs["cosine_recall@100"], abs=1e-4)


def test_first_tokens_of_words_equal_transformers(minilm, tokenizer):
    rows = lines("tc/uner_en/test.jsonl")
    # Words that WordPiece cuts, with characters beyond ASCII among them.
    rows = [row for row in rows if not " ".join(row["tokens"]).isascii()] + rows
    sentences = tuple(
        TaggedSentence(str(number), tuple(row["tokens"]), (0,) * len(row["tokens"]))
        for number, row in enumerate(rows[:NUM_SENTENCES])
    )
    task = ExampleTask(info("tc", "entity_f1"), dict.fromkeys(SPLITS, sentences), ("O", "B-X"))
    encoded = encode_task(task, tokenizer, protocol=FinetuneProtocol(max_seqlen=512))
    theirs = AutoTokenizer.from_pretrained(minilm)(
        [list(sentence.words) for sentence in sentences], is_split_into_words=True
    )
    ours, num_cut = encoded.sentences["test"], 0
    for index, sentence in enumerate(ours):
        sequence, positions = sentence.sequence, sentence.positions
        assert sequence.tolist() == theirs["input_ids"][index]
        words = theirs.word_ids(index)
        assert positions.tolist() == [words.index(word) for word in range(len(positions))]
        num_cut += len(positions) < len(sequence) - 2
    assert num_cut > NUM_SENTENCES / 2


def test_answer_tokens_equal_transformers(minilm, tokenizer):
    rows = [row for row in lines("qa/squad/test.jsonl") if row["answers"]["text"]][:NUM_QUESTIONS]
    questions = tuple(
        Question(
            row["id"], row["question"], row["context"],
            (Answer(row["answers"]["text"][0], row["answers"]["answer_start"][0]),),
        )
        for row in rows
    )  # fmt: skip
    task = ExampleTask(info("qa", "f1"), dict.fromkeys(SPLITS, questions))
    encoded = encode_task(task, tokenizer, protocol=FinetuneProtocol(max_seqlen=512))
    theirs = AutoTokenizer.from_pretrained(minilm)(
        [question.question for question in questions], [question.context for question in questions]
    )
    windows = encoded.parts["test"].windows
    assert [window.question for window in windows] == list(range(len(questions)))  # none is long
    for window, question in zip(windows, questions, strict=True):
        [answer], number = question.answers, window.question
        assert window.sequence.tolist() == theirs["input_ids"][number]
        last = answer.start + len(answer.text) - 1
        wanted = [
            theirs.char_to_token(number, place, sequence_index=1) for place in (answer.start, last)
        ]
        assert list(window.target) == wanted
        first, end = np.array(window.target) - window.prefix
        shown = question.context[window.offsets[first, 0] : window.offsets[end, 1]]
        assert answer.text in shown
