"""A small task of each kind that is fine-tuned, made by code."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from golden_text import Draws

from biphasic.tasks.kinds.questions import Answer, Question
from biphasic.tasks.kinds.tagging import TaggedSentence
from biphasic.tasks.kinds.text import AnsweredText
from biphasic.tasks.records import ExampleTask, RetrievalTask, Task, TaskInfo

_SIZES = {"train": 96, "validation": 24, "test": 24}
_TAGS = ("O", "B-LOC", "B-PER", "I-PER")
_ENTITIES = ((("paris",), (1,)), (("anna",), (2,)), (("anna", "smith"), (2, 3)))
_TOPICS = (("cat", "dog"), ("anna", "smith"), ("paris", "weights"), ("tokens", "memory"))
_NUM_DOCUMENTS = 40

_Example = TypeVar("_Example")


def classification_task() -> ExampleTask:
    """Whether a text has a cat or a dog in it."""
    draws = Draws("sc")

    def draw(number: int) -> AnsweredText:
        label, words = draws.below(2), draws.words(3, 16)
        words.insert(draws.below(len(words)), ("cat", "dog")[label])
        return AnsweredText(str(number), " ".join(words), label)

    return ExampleTask(_info("sc", "accuracy"), _splits(draw), ("cat", "dog"))


def regression_task() -> ExampleTask:
    """How many words of a text are cats."""
    draws = Draws("sr")

    def draw(number: int) -> AnsweredText:
        cats, words = draws.below(6), draws.words(3, 10)
        for _ in range(cats):
            words.insert(draws.below(len(words)), "cat")
        return AnsweredText(str(number), " ".join(words), 10.0 + cats)

    return ExampleTask(_info("sr", "spearman"), _splits(draw))


def tagging_task() -> ExampleTask:
    """Places and people between other words."""
    draws = Draws("tc")

    def draw(number: int) -> TaggedSentence:
        words, tags = draws.words(1, 5), []
        tags += [0] * len(words)
        for _ in range(1 + draws.below(3)):
            names, kinds = _ENTITIES[draws.below(len(_ENTITIES))]
            between = draws.words(1, 4)
            words += [*names, *between]
            tags += [*kinds, *[0] * len(between)]
        return TaggedSentence(str(number), tuple(words), tuple(tags))

    return ExampleTask(_info("tc", "entity_f1"), _splits(draw), _TAGS)


def question_task() -> ExampleTask:
    """Who, or where; a quarter of the contexts do not say, and the longest take several windows."""
    draws = Draws("qa")

    def draw(number: int) -> Question:
        asked, wanted = (("who is it", "anna smith"), ("where is it", "paris"))[draws.below(2)]
        words = draws.words(4, 50)
        if draws.below(4):
            words.insert(draws.below(len(words)), wanted)
        context = " ".join(words)
        start = context.find(wanted)
        answers = (Answer(wanted, start),) if start >= 0 else ()
        return Question(str(number), asked, context, answers)

    return ExampleTask(_info("qa", "f1"), _splits(draw))


def retrieval_task() -> RetrievalTask:
    """A query has one of a topic's two words, a document the other."""
    draws = Draws("ir")
    topics = len(_TOPICS)
    corpus = {
        f"d{number}": " ".join([_TOPICS[number % topics][1], *draws.words(4, 20)])
        for number in range(_NUM_DOCUMENTS)
    }
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    for split, size in _SIZES.items():
        qrels[split] = {}
        for number in range(size // 2):
            topic, query = number % topics, f"{split}{number}"
            queries[query] = " ".join([_TOPICS[topic][0], *draws.words(1, 5)])
            first = topic + topics * draws.below(_NUM_DOCUMENTS // topics - 1)
            qrels[split][query] = {f"d{first}": 1, f"d{first + topics}": 1}
    return RetrievalTask(_info("ir", "ndcg_at_10"), corpus, queries, qrels)


TASKS: Mapping[str, Callable[[], Task]] = {
    "sc": classification_task,
    "sr": regression_task,
    "tc": tagging_task,
    "qa": question_task,
    "ir": retrieval_task,
}


def _info(kind: str, metric: str) -> TaskInfo:
    return TaskInfo(f"golden-{kind}", kind, "Golden", metric, "0" * 64)


def _splits(draw: Callable[[int], _Example]) -> dict[str, tuple[_Example, ...]]:
    return {split: tuple(map(draw, range(size))) for split, size in _SIZES.items()}
