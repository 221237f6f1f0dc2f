"""The four built-in tasks made from the documentation: candidates, and splits without leaks.

- `sc`: the library of a description with names blanked.
- `tc`: parameter names, types and defaults in flattened parameter sections.
- `qa`: purpose, type or default of a parameter, or the return value.
- `ir`: the documentation that a one-line summary comes from.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from biphasic.data.text.near_duplicates import (
    SHINGLE_WORDS,
    ShingleIndex,
    Shingler,
    comparable_words,
)
from biphasic.errors import DataError
from biphasic.pydocs.documents import LIBRARIES, STANDARD_LIBRARY, Document, Split, body_of
from biphasic.pydocs.sections import Parameter, Sections, parse_sections, plain, sentences
from biphasic.tasks.folder import TaskDescription, write_task_folder
from biphasic.tasks.records import TaskContent

_BLANK = "_"

_MAX_LIBRARIES = 12
_MIN_WORDS = 10
_MAX_WORDS = 40
_MAX_BLANK_SHARE = 0.25

# Words that reveal a library besides its name: aliases, makers, types and engines.
_TELLTALES = frozenset(
    re.findall(
        r"\w+",
        "np pd plt mpl tf sp sm smf nx sns pa hf hub python pythons cpython pytorch pythonic"
        " hugging face huggingface scikit learn keras tensorflow jax flax pylab pyplot ndarray"
        " ndarrays dataframe dataframes series axes artist artists aten autograd dynamo inductor"
        " dtensor dtensors estimator estimators polars arrow tkinter tcl tk",
    )
)
_LIBRARY_NAMES = frozenset(
    part
    for library, packages in LIBRARIES.items()
    for name in (library, *packages)
    for part in (name.lower(), name.lower().replace("-", "").replace("_", ""))
    if part not in {"click", "regex", "rich", "packaging", "dill", "markdown"}  # English words
)
_WORD = re.compile(r"[A-Za-z_](?:[\w.]*\w)?(?:\(\w*\))?")
_IDENTIFIER = re.compile(r"[A-Za-z]*_|\w\.\w|[a-z][A-Z]|[A-Za-z]\d|\(")
_BLANKS = re.compile(r"_(?:[\s.,'/-]*_)+")

MIN_TOKENS = 15
MAX_TOKENS = 60
_MAX_TYPE_TOKENS = 10
_MAX_DEFAULT_TOKENS = 4
TAGS = ("O", "B-DEFAULT", "I-DEFAULT", "B-NAME", "I-NAME", "B-TYPE", "I-TYPE")

# Words only: colons, brackets and full stops would reveal names and types.
_TOKEN = re.compile(r"-?\w+(?:[.'/-]\w+)*")
_CUES: tuple[tuple[str, ...], ...] = ((), ("default",), ("defaults", "to"), ())

MAX_CONTEXT_CHARACTERS = 700
_MIN_PARAMETERS = 2

# Weights of the kinds of questions that a docstring can answer.
_KINDS = ("description", "description", "description", "type", "default", "default", "returns")
# Minimum and maximum words of an answer.
_ANSWER_WORDS = {"description": (3, 30), "type": (1, 8), "default": (1, 4), "returns": (3, 30)}
_QUESTIONS = {
    "description": (
        "What does parameter {p} of {f} do?",
        "What is {p} in {f}?",
        "What is the meaning of the argument {p} of {f}?",
    ),
    "type": ("What is the type of {p} in {f}?", "Which type does {f} expect for {p}?"),
    "default": (
        "What is the default of {p} in {f}?",
        "Which value does {p} of {f} take if omitted?",
    ),
    "returns": ("What does {f} return?", "What is the result of {f}?"),
}

Starts = dict[tuple[str, str], int]  # offsets of answers by `(kind, parameter)`

_MIN_QUERY_WORDS = 5
_MAX_QUERY_WORDS = 30
_MIN_TEXT_WORDS = 20
_MAX_TEXT_WORDS = 70


@dataclass(frozen=True)
class ParsedDocument:
    """A document and its parsed docstring."""

    document: Document
    sections: Sections


@dataclass(frozen=True)
class Example:
    """One candidate example of a task."""

    id: str
    split: Split
    record: Mapping[str, Any]  # its fields in the task's file, except the id
    evidence: tuple[str, ...]
    """Its source passages, in plain text; none may occur in another split's documents."""
    keys: tuple[str, ...]  # texts that must be unique among all examples
    group: str = ""  # examples are taken from the groups in turn


def parse_documents(documents: Iterable[Document]) -> list[ParsedDocument]:
    """Parse the docstring of every document."""
    return [ParsedDocument(document, parse_sections(body_of(document))) for document in documents]


def draw(text: str, count: int) -> int:
    """Choose one of `count` by the hash of a text; the choice is the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % count


def library_labels(parsed: Sequence[ParsedDocument]) -> list[str]:
    """Return the libraries with the most test documents, in alphabetical order."""
    counts = Counter(item.document.library for item in parsed if item.document.split == "test")
    ranked = sorted(counts, key=lambda library: (-counts[library], library))
    return sorted(ranked[:_MAX_LIBRARIES])


def library_examples(parsed: Sequence[ParsedDocument], labels: Sequence[str]) -> Iterator[Example]:
    """Yield the first sentences of each document's prose, with its library as the label."""
    for item in parsed:
        document = item.document
        passage = _passage(item.sections.prose)
        if document.library not in labels or len(passage.split()) < _MIN_WORDS:
            continue
        text = blank_names(passage, name=document.id)
        if text.split().count(_BLANK) <= _MAX_BLANK_SHARE * len(text.split()):
            record = {"text": text, "label": labels.index(document.library)}
            yield Example(
                document.id, document.split, record, (passage,), (text,), document.library
            )


def blank_names(text: str, *, name: str) -> str:
    """Blank libraries, their aliases, identifiers, and the parts of the qualified name."""
    parts = {part.lower().strip("_") for part in name.split(".")}

    def blank(match: re.Match[str]) -> str:
        word = match[0]
        lower = word.lower()
        is_name = lower in parts or lower in _LIBRARY_NAMES or lower in _TELLTALES
        return _BLANK if is_name or lower == STANDARD_LIBRARY or _IDENTIFIER.search(word) else word

    return _BLANKS.sub(_BLANK, _WORD.sub(blank, text))


def _passage(prose: Sequence[str]) -> str:
    """Return the first sentences of the prose that fit into `_MAX_WORDS`."""
    words = 0
    chosen = []
    for sentence in (sentence for paragraph in prose for sentence in sentences(paragraph)):
        words += len(sentence.split())
        if words > _MAX_WORDS:
            break
        chosen.append(sentence)
    return " ".join(chosen)


def parameter_examples(parsed: Sequence[ParsedDocument]) -> Iterator[Example]:
    """Yield running text made of the entries of each parameter section, with its tags."""
    for item in parsed:
        document = item.document
        tokens: list[str] = []
        tags: list[str] = []
        passages = []
        for parameter in item.sections.parameters:
            entry = tag_parameter(parameter, key=f"{document.id} {parameter.name}")
            if not entry or len(tokens) >= MAX_TOKENS // 2:
                break
            tokens.extend(token for token, _ in entry)
            tags.extend(tag for _, tag in entry)
            passages.append(f"{parameter.name} {parameter.type} {parameter.description}")
        # Cut no entity: an entry starts in the first half, and its entities come first.
        tokens, tags = tokens[:MAX_TOKENS], tags[:MAX_TOKENS]
        if len(tokens) >= MIN_TOKENS and "B-TYPE" in tags:
            record = {"tokens": tokens, "tags": tags}
            text = " ".join(tokens)
            yield Example(document.id, document.split, record, tuple(passages), (text,))


def tag_parameter(parameter: Parameter, *, key: str) -> list[tuple[str, str]]:
    """Write an entry as name, type, default and description; empty if unsuitable."""
    # The hash of `key` chooses the words before the default, so they are not a reliable clue.
    kind = _TOKEN.findall(parameter.type)
    default = _TOKEN.findall(parameter.default)
    description = _TOKEN.findall(parameter.description)
    if len(kind) > _MAX_TYPE_TOKENS or len(default) > _MAX_DEFAULT_TOKENS or not description:
        return []
    cue = _CUES[draw(key, len(_CUES))] if default else ()
    return [
        *_entity([parameter.name], "NAME"),
        *_entity(kind, "TYPE"),
        *((token, "O") for token in cue),
        *_entity(default, "DEFAULT"),
        *((token, "O") for token in description),
    ]


def _entity(tokens: list[str], label: str) -> list[tuple[str, str]]:
    return [(token, f"{'I' if place else 'B'}-{label}") for place, token in enumerate(tokens)]


def parameter_questions(parsed: Sequence[ParsedDocument]) -> Iterator[Example]:
    """Yield one question per document that describes at least two parameters."""
    for item in parsed:
        name = item.document.id
        described = _described(item.sections)
        options = _options(item.sections, described)
        kinds = [kind for kind in _KINDS if options[kind]]
        if len(described) < _MIN_PARAMETERS or not kinds:
            continue
        kind = kinds[draw(f"kind {name}", len(kinds))]
        choices = options[kind]
        choice = choices[draw(f"parameter {name}", len(choices))]
        window = _window(item.sections, described, choice)
        if len(window) >= _MIN_PARAMETERS:
            context, starts = render(item.sections, window)
            yield _example(item, context, starts, kind=kind, target=described[choice])


def render(sections: Sections, parameters: Sequence[Parameter]) -> tuple[str, Starts]:
    """Write the summary, the parameters and the return value, with the offset of each answer."""
    text = sections.summary
    starts: Starts = {}
    for parameter in parameters:
        text += f"\n{parameter.name}" if text else parameter.name
        if parameter.type or parameter.default:
            text += " ("
            starts["type", parameter.name] = len(text)
            text += parameter.type
            if parameter.default:
                text += ", default " if parameter.type else "default "
                starts["default", parameter.name] = len(text)
                text += parameter.default
            text += ")"
        text += ": "
        starts["description", parameter.name] = len(text)
        text += parameter.description
    if sections.returns:
        text += "\nReturns: "
        starts["returns", ""] = len(text)
        text += sections.returns
    return text, starts


def _example(
    item: ParsedDocument, context: str, starts: Starts, *, kind: str, target: Parameter
) -> Example:
    document = item.document
    answer = _answer(item.sections, target, kind)
    start = starts[kind, "" if kind == "returns" else target.name]
    templates = _QUESTIONS[kind]
    template = templates[draw(f"template {document.id}", len(templates))]
    function = document.id.removesuffix(".__init__").rpartition(".")[2]
    record = {
        "question": template.format(p=target.name, f=function),
        "context": context,
        "answers": {"text": [answer], "answer_start": [start]},
    }
    # Types and defaults recur everywhere; a description must be new.
    source = answer if kind in {"description", "returns"} else context
    entry = f"{target.name} {target.type} {target.description}"
    evidence = (context, source if kind == "returns" else entry, source)
    return Example(document.id, document.split, record, evidence, (context,))


def _answer(sections: Sections, target: Parameter, kind: str) -> str:
    """Return the answer's text, a prefix of its entry in the context."""
    if kind == "description":
        return _first_sentence(target.description)
    if kind == "returns":
        return _first_sentence(sections.returns)
    return target.type if kind == "type" else target.default


def _options(sections: Sections, described: Sequence[Parameter]) -> dict[str, list[int]]:
    """Return, by kind of question, the indices of the parameters with a suitable answer."""
    return {
        kind: [
            place
            for place, parameter in enumerate(described)
            if least <= len(_answer(sections, parameter, kind).split()) <= most
        ]
        for kind, (least, most) in _ANSWER_WORDS.items()
    }


def _described(sections: Sections) -> list[Parameter]:
    """Return the parameters with a description; of duplicates, the first."""
    by_name: dict[str, Parameter] = {}
    for parameter in sections.parameters:
        if parameter.description:
            by_name.setdefault(parameter.name, parameter)
    return list(by_name.values())


def _first_sentence(text: str) -> str:
    return sentences(text)[0].rstrip(".!?") if text else ""


def _window(sections: Sections, described: list[Parameter], choice: int) -> list[Parameter]:
    """Return as many consecutive parameters around the chosen one as fit into the context."""
    room = MAX_CONTEXT_CHARACTERS - len(sections.summary) - len(sections.returns) - 12
    lengths = [
        len(entry.name) + len(entry.type) + len(entry.default) + len(entry.description) + 16
        for entry in described
    ]
    first, last = choice, choice + 1
    grown = True
    while grown:
        grown = False
        for start, end in ((first, last + 1), (first - 1, last)):
            fits = start >= 0 and end <= len(described)
            if fits and sum(lengths[start:end]) <= room:
                first, last, grown = start, end, True
                break
    return described[first:last]


def summary_examples(parsed: Sequence[ParsedDocument]) -> Iterator[Example]:
    """Yield the summary as the query and the rest as the document, the name blanked in both."""
    for item in parsed:
        document = item.document
        query = blank_own_name(item.sections.summary, name=document.id)
        text = blank_own_name(_rest(item.sections), name=document.id)
        if not _MIN_QUERY_WORDS <= len(query.split()) <= _MAX_QUERY_WORDS:
            continue
        if len(text.split()) < _MIN_TEXT_WORDS or query.lower().rstrip(".") in text.lower():
            continue
        record = {"query": query, "text": text}
        evidence = (item.sections.summary, _rest(item.sections))
        yield Example(document.id, document.split, record, evidence, (query, text))


def blank_own_name(text: str, *, name: str) -> str:
    """Blank the last part of a qualified name wherever it occurs as a word."""
    last_part = re.escape(name.rpartition(".")[2])
    return re.sub(rf"(?<!\w)(?:\w+\.)*{last_part}(?!\w)", _BLANK, text, flags=re.IGNORECASE)


def _rest(sections: Sections) -> str:
    """Return the text after the summary: prose, parameters, return value, cut by words."""
    prose = [sentence for paragraph in sections.prose for sentence in sentences(paragraph)]
    entries = [f"{entry.name}: {entry.description}" for entry in sections.parameters]
    words = " ".join([*prose[1:], *entries, sections.returns]).split()
    return " ".join(words[:_MAX_TEXT_WORDS])


SPLITS: tuple[Split, ...] = ("test", "validation", "train")
TASKS_VERSION = 2  # increase by hand whenever the same documents would give different tasks
BUILTIN_TASKS = {f"pydocs-{kind}": kind for kind in ("sc", "tc", "qa", "ir")}
"""The kind of each built-in task."""
LIMITS: Mapping[Split, int] = {"train": 4_000, "validation": 400, "test": 600}
_RETRIEVAL_LIMITS: Mapping[Split, int] = {"train": 3_000, "validation": 300, "test": 600}

Selected = Mapping[Split, Sequence[Example]]


def build_tasks(documents: Sequence[Document], out: Path) -> None:
    """Write `pydocs-sc`, `pydocs-tc`, `pydocs-qa` and `pydocs-ir`; only documents matter."""
    parsed = parse_documents(documents)
    leak_filter = LeakFilter(parsed)
    labels = library_labels(parsed)

    chosen = leak_filter.select(library_examples(parsed, labels), limits=LIMITS)
    _write(out, "sc", chosen, partial(_examples, labels), title="Which library?")

    chosen = leak_filter.select(parameter_examples(parsed), limits=LIMITS)
    _write(out, "tc", chosen, partial(_examples, TAGS), title="Parameter spans")

    chosen = leak_filter.select(parameter_questions(parsed), limits=LIMITS)
    _write(out, "qa", chosen, partial(_examples, ()), title="Parameter questions")

    chosen = leak_filter.select(summary_examples(parsed), limits=_RETRIEVAL_LIMITS)
    _write(out, "ir", chosen, _texts, title="Find the page")


def _write(
    out: Path,
    kind: str,
    chosen: Selected,
    content_of: Callable[[Selected], TaskContent],
    *,
    title: str,
) -> None:
    name = f"pydocs-{kind}"
    for split in SPLITS:
        if not chosen[split]:
            raise DataError(f"{name}: the documentation yields no {split} example")
    description = TaskDescription(name=name, kind=kind, title=title)
    write_task_folder(out / name, description, content_of(chosen))


def _examples(labels: Sequence[str], chosen: Selected) -> TaskContent:
    rows = {
        split: [{"id": example.id, **example.record} for example in examples]
        for split, examples in chosen.items()
    }
    return TaskContent(splits=rows, labels=labels)


def _texts(chosen: Selected) -> TaskContent:
    """Return corpus, queries and judgements; all splits share one corpus."""
    every = sorted((e for part in chosen.values() for e in part), key=lambda e: e.id)
    return TaskContent(
        corpus=[{"_id": e.id, "title": "", "text": e.record["text"]} for e in every],
        queries=[{"_id": f"q:{e.id}", "text": e.record["query"]} for e in every],
        qrels={
            split: [(f"q:{example.id}", example.id, 1) for example in examples]
            for split, examples in chosen.items()
        },
    )


class LeakFilter:
    """Holds every split's text and selects examples that occur in no other split."""

    def __init__(self, parsed: Sequence[ParsedDocument]) -> None:
        self._shingler = Shingler()
        parts: dict[str, list[NDArray[np.uint64]]] = defaultdict(list)
        self._sentences: dict[str, set[str]] = {split: set() for split in SPLITS}
        for item in parsed:
            split = item.document.split
            parts[split].append(self._shingler(plain(body_of(item.document))))
            self._sentences[split].update(map(_normalised, _short_passages(item.sections)))
        self._elsewhere = {
            split: ShingleIndex(part for other in SPLITS if other != split for part in parts[other])
            for split in SPLITS
        }

    def select(
        self, examples: Iterable[Example], *, limits: Mapping[Split, int]
    ) -> dict[Split, list[Example]]:
        """Choose up to `limits` examples per split, by the hash of their ids."""
        # Texts are unique over all splits; of two equal ones, the held-out one is kept.
        by_split: dict[Split, list[Example]] = {split: [] for split in SPLITS}
        for example in examples:
            by_split[example.split].append(example)
        taken: set[str] = set()
        chosen: dict[Split, list[Example]] = {}
        for split in SPLITS:
            chosen[split] = selected = []
            for example in _in_turn(by_split[split]):
                if len(selected) == limits[split]:
                    break
                keys = {_normalised(key) for key in example.keys}
                if taken.isdisjoint(keys) and not self.leaks(example):
                    taken |= keys
                    selected.append(example)
        return chosen

    def leaks(self, example: Example) -> bool:
        """Return whether a passage of the example occurs in another split's documents."""
        index = self._elsewhere[example.split]
        others = [self._sentences[split] for split in SPLITS if split != example.split]
        return any(
            index.holds(self._shingler(passage))
            or any(_normalised(passage) in texts for texts in others)
            for passage in example.evidence
        )


def _short_passages(sections: Sections) -> Iterator[str]:
    """Yield sentences and descriptions of fewer words than a shingle."""
    descriptions = (parameter.description for parameter in sections.parameters)
    for text in (*sections.prose, *descriptions, sections.returns):
        for sentence in sentences(text):
            if len(sentence.split()) < SHINGLE_WORDS:
                yield sentence


def _in_turn(examples: list[Example]) -> list[Example]:
    """Order by the hash of the id, then take from the groups in turn."""
    ordered = sorted(examples, key=lambda example: hashlib.sha256(example.id.encode()).digest())
    seen: dict[str, int] = defaultdict(int)
    turns = []
    for example in ordered:
        turns.append(seen[example.group])
        seen[example.group] += 1
    return [ordered[place] for place in sorted(range(len(ordered)), key=turns.__getitem__)]


def _normalised(text: str) -> str:
    return " ".join(comparable_words(text))
