"""Baselines of tasks, whose predictions are scored as those of models.

A floor is what an encoder that learned nothing reaches; a reference is what people could use
instead of an encoder. Kinds of tasks name theirs in `TaskKind.baselines`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from biphasic.data.text.words import searched_words, words_in
from biphasic.seeds import derive_seed
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import SPLITS, ExampleTask, RetrievalTask

if TYPE_CHECKING:
    from biphasic.data.tokens.tokenizer import TextTokenizer

BASELINES_VERSION = 2  # increase by hand whenever a baseline would give different scores
DRAWS = 5  # of random vectors
# Those that read the training split.
TRAINED = frozenset({"floor:majority", "floor:dictionary", "reference:bag-of-words"})
_STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # inverse regularisation, by validation
_APART = r"\S+"  # words that spaces separate
_SENTENCE = re.compile(r"[^.!?。！？]+[.!?。！？]*")


@dataclass(frozen=True)
class Setting:
    """Settings of a baseline beside the task."""

    protocol: FinetuneProtocol = field(default_factory=FinetuneProtocol)
    tokenizer: TextTokenizer | None = None  # of random vectors, as are width and seed
    width: int = 0
    seed: int = 0


# Predictions by split, in the form that the learner's `score` takes.
Baseline = Callable[[Any, Setting], Mapping[str, Any]]


def _scored_splits(task: ExampleTask) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the splits that are scored, with their examples."""
    yield from ((name, task.splits[name]) for name in SPLITS[1:] if name in task.splits)


def majority(task: ExampleTask, _: Setting) -> Mapping[str, Any]:
    """Predict the most frequent answer of training for every text; of labels, the lower one."""
    answers = (example.answer for example in task.splits["train"])
    # Sets of labels are equal in whatever order they are written.
    counts = Counter(tuple(sorted(a)) if isinstance(a, tuple) else a for a in answers)
    # The lower one on ties: the order of the file must not decide a floor.
    answer = min(counts, key=lambda answer: (-counts[answer], answer))
    return {split: [answer] * len(examples) for split, examples in _scored_splits(task)}


def mean_value(task: ExampleTask, _: Setting) -> Mapping[str, Any]:
    """Predict the mean value of training for every text."""
    mean = np.mean([example.answer for example in task.splits["train"]])
    return {split: np.full(len(examples), mean) for split, examples in _scored_splits(task)}


def dictionary(task: ExampleTask, _: Setting) -> Mapping[str, Any]:
    """Predict the most frequent tag of each word in training; O for other words.

    A tag that would continue an entity that is not there begins one instead.
    """
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for sentence in task.splits["train"]:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            counts[word][tag] += 1
    tags = {
        word: tag_counts.most_common(1)[0][0] for word, tag_counts in counts.items()
    }  # the first of equals
    numbers = {name: number for number, name in enumerate(task.labels)}

    def predict(words: Sequence[str]) -> NDArray[np.int64]:
        names, before = [], "O"
        for word in words:
            name = task.labels[tags[word]] if word in tags else "O"
            if name.startswith("I-") and before[2:] != name[2:]:
                name = f"B-{name[2:]}"
            names.append(name)
            before = name
        return np.array([numbers[name] for name in names], dtype=np.int64)

    return {
        split: [predict(sentence.words) for sentence in sentences]
        for split, sentences in _scored_splits(task)
    }


def chance(task: ExampleTask, _: Setting) -> Mapping[str, Any]:
    """Give both sentences of every pair the same probability: a tie."""
    return {split: np.zeros((len(pairs), 2)) for split, pairs in _scored_splits(task)}


def no_answer(task: ExampleTask, _: Setting) -> Mapping[str, Any]:
    """Answer no question."""
    return {split: [""] * len(questions) for split, questions in _scored_splits(task)}


def shared_words(task: ExampleTask, _: Setting) -> Mapping[str, Any]:
    """Answer with the sentence that shares most words with the question; the first of equals."""

    def answer(question: Any) -> str:
        words = {*words_in(question.question.lower())}
        sentences = [text.strip() for text in _SENTENCE.findall(question.context)] or [""]
        return max(sentences, key=lambda text: len(words & {*words_in(text.lower())}))

    return {split: [*map(answer, questions)] for split, questions in _scored_splits(task)}


def bag_of_words(task: ExampleTask, setting: Setting, *, kind: str) -> Mapping[str, Any]:
    """Fit a linear model on TF-IDF of words and pairs of words; its strength by validation."""
    from sklearn.linear_model import LogisticRegression, Ridge  # noqa: PLC0415 - slow to load
    from sklearn.multiclass import OneVsRestClassifier  # noqa: PLC0415

    from biphasic.tasks.metrics import multi_label_scores, spearman  # noqa: PLC0415

    texts = [example.text for example in task.splits["train"]]
    if not any(map(words_in, texts)):  # such as signs alone, which scikit-learn refuses
        return (mean_value if kind == "sr" else majority)(task, setting)
    vectorizer = _tfidf(ngram_range=(1, 2), sublinear_tf=True).fit(texts)
    inputs, answers = {}, {}
    for split, examples in task.splits.items():
        inputs[split] = vectorizer.transform([example.text for example in examples])
        answers[split] = np.array(
            [
                np.isin(np.arange(len(task.labels)), example.answer)
                if kind == "ml"
                else example.answer
                for example in examples
            ]
        )
    if kind != "sr" and len(np.unique(answers["train"], axis=0)) == 1:  # nothing to tell apart
        same = answers["train"][:1]
        return {
            split: np.repeat(same, len(examples), axis=0)
            for split, examples in _scored_splits(task)
        }

    def score(predicted: Any) -> float:
        expected = answers["validation"]
        if kind == "sr":
            return spearman(expected, predicted)
        if kind == "ml":
            return multi_label_scores(expected, predicted.astype(bool))["micro_f1"]
        return float((predicted == expected).mean())

    best, chosen = -np.inf, None
    for strength in _STRENGTHS:
        if kind == "sr":
            model: Any = Ridge(alpha=1 / strength)
        else:
            model = LogisticRegression(C=strength, max_iter=1000)
        if kind == "ml":
            model = OneVsRestClassifier(model)
        model.fit(inputs["train"], answers["train"])
        if (value := score(model.predict(inputs["validation"]))) > best:
            best, chosen = value, model
    assert chosen is not None  # noqa: S101 - a score is finite
    return {split: chosen.predict(inputs[split]) for split, _ in _scored_splits(task)}


def tfidf_similarity(task: ExampleTask, _: Setting) -> Mapping[str, Any]:
    """Compare sentences by the cosine of their TF-IDF; frequencies are those of all pairs."""
    every = [text for _, pairs in _scored_splits(task) for pair in pairs for text in _both(pair)]
    if not any(map(words_in, every)):
        return {split: np.zeros(len(pairs)) for split, pairs in _scored_splits(task)}
    vectorizer = _tfidf().fit(every)

    def cosines(pairs: Sequence[Any]) -> NDArray[np.float64]:
        vectors = vectorizer.transform([text for pair in pairs for text in _both(pair)])
        return np.asarray(vectors[::2].multiply(vectors[1::2]).sum(axis=1)).ravel()

    return {split: cosines(pairs) for split, pairs in _scored_splits(task)}


def _tfidf(**settings: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - slow to load

    # A pattern beside a tokenizer would be a warning.
    unread: Any = {"token_pattern": None}
    return TfidfVectorizer(tokenizer=words_in, **unread, **settings)


def _both(pair: Any) -> tuple[str, str]:
    return pair.text_a, pair.text_b


def random_similarity(task: ExampleTask, setting: Setting) -> Mapping[str, Any]:
    """Compare sentences by the cosine of mean random vectors of their tokens."""
    embed = _random_vectors(setting)

    def cosines(pairs: Sequence[Any]) -> NDArray[np.float64]:
        vectors = embed([text for pair in pairs for text in _both(pair)])
        return (vectors[::2] * vectors[1::2]).sum(axis=1)

    return {split: cosines(pairs) for split, pairs in _scored_splits(task)}


def _random_vectors(setting: Setting) -> Callable[[Sequence[str]], NDArray[np.float64]]:
    """Return what gives texts the normalized mean of a random vector for each token."""
    from biphasic.tasks.encoding import encode_texts  # noqa: PLC0415 - loads torch

    tokenizer, longest = setting.tokenizer, setting.protocol.max_seqlen
    assert tokenizer is not None  # noqa: S101 - those with random vectors have one
    # One table for all texts and splits: queries and documents must share the vectors of their
    # words.
    generator = np.random.default_rng(derive_seed("random-vectors", setting.seed))
    table = generator.standard_normal((tokenizer.vocab_size, setting.width))

    def embed(texts: Sequence[str]) -> NDArray[np.float64]:  # [num_texts, width]
        sequences, _ = encode_texts(texts, tokenizer, max_seqlen=longest)
        # Without BOS and EOS, which all texts share.
        means = np.array([table[ids[1:-1]].sum(axis=0) for ids in sequences])
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        return np.divide(means, lengths, out=np.zeros_like(means), where=lengths > 0)

    return embed


def searched_documents(task: RetrievalTask, protocol: FinetuneProtocol) -> list[str]:
    """Return the documents that are searched, in descending order: ties break as in trec_eval."""
    if protocol.retrieval_corpus == "full":
        return sorted(task.corpus, reverse=True)
    judged = (documents for split in SPLITS[1:] for documents in task.qrels.get(split, {}).values())
    return sorted({document for documents in judged for document in documents}, reverse=True)


def bm25(task: RetrievalTask, setting: Setting) -> Mapping[str, Any]:
    """Rank documents by BM25 with k1 = 1.5 and b = 0.75, on all words, without prompts."""
    names = searched_documents(task, setting.protocol)
    documents = [_unprompted(task.corpus[name], task.document_template) for name in names]
    search = bm25_scores(documents, method="robertson", stopwords=[])

    def scores(texts: Sequence[str]) -> NDArray[Any]:
        return np.array([search(_unprompted(text, task.query_template)) for text in texts])

    return _ranked(task, names, scores)


def bm25_scores(
    documents: Sequence[str], *, method: str = "lucene", stopwords: str | list[str] = "english"
) -> Callable[[str], NDArray[np.float32]]:
    """Return a function that scores documents by BM25 for a query, float32 [num_documents]."""
    import bm25s  # noqa: PLC0415 - slow to load

    def split(texts: Iterable[str], **options: Any) -> Any:
        apart = [" ".join(searched_words(text)) for text in texts]
        return bm25s.tokenize(
            apart, token_pattern=_APART, stopwords=stopwords, show_progress=False, **options
        )

    index, read, none = bm25s.BM25(method=method), split(documents), np.zeros(len(documents), "f4")
    if not read.vocab:  # bm25s indexes no documents without words, and finds none without words
        return lambda _: none
    index.index(read, show_progress=False)

    def scores(query: str) -> NDArray[np.float32]:
        (words,) = split([query], return_ids=False)
        return index.get_scores(words) if words else none

    return scores


def _unprompted(text: str, template: str) -> str:
    before, after = template.partition("{")[0], template.rpartition("}")[2]
    return text.removeprefix(before).removesuffix(after)


def random_retrieval(task: RetrievalTask, setting: Setting) -> Mapping[str, Any]:
    """Rank documents by the cosine of mean random vectors of tokens."""
    names = searched_documents(task, setting.protocol)
    embed = _random_vectors(setting)
    vectors = embed([task.corpus[name] for name in names])
    return _ranked(task, names, lambda texts: embed(texts) @ vectors.T)


def _ranked(
    task: RetrievalTask,
    names: Sequence[str],
    scores: Callable[[Sequence[str]], NDArray[Any]],
) -> Mapping[str, Any]:
    """Return the best documents of each judged query, by split."""
    from biphasic.tasks.metrics import top_documents  # noqa: PLC0415 - slow to load

    rankings: dict[str, dict[str, Any]] = {}
    for split in SPLITS[1:]:
        queries = [*task.qrels.get(split, ())]
        for start in range(0, len(queries), 256):  # of millions of documents
            part = queries[start : start + 256]
            columns = top_documents(scores([task.queries[query] for query in part])).tolist()
            for query, best in zip(part, columns, strict=True):
                rankings.setdefault(split, {})[query] = [names[column] for column in best]
    return rankings
