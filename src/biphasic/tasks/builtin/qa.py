"""Question answering: purpose, type or default of a parameter, or the return value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from biphasic.tasks.builtin.examples import Example, ParsedDocument, draw
from biphasic.tasks.builtin.sections import Parameter, Sections, sentences

MAX_CONTEXT_CHARACTERS = 700
MIN_PARAMETERS = 2

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


@dataclass(frozen=True)
class Rendered:
    """A context, and the offset of each answer by `(kind, parameter)`."""

    text: str
    starts: dict[tuple[str, str], int]


def parameter_questions(parsed: Sequence[ParsedDocument]) -> Iterator[Example]:
    """Yield one question per document that describes at least two parameters."""
    for item in parsed:
        name = item.document.id
        described = _described(item.sections)
        options = _options(item.sections, described)
        kinds = [kind for kind in _KINDS if options[kind]]
        if len(described) < MIN_PARAMETERS or not kinds:
            continue
        kind = kinds[draw(f"kind {name}", len(kinds))]
        choices = options[kind]
        choice = choices[draw(f"parameter {name}", len(choices))]
        window = _window(item.sections, described, choice)
        if len(window) >= MIN_PARAMETERS:
            context = render(item.sections, window)
            yield _example(item, context, kind=kind, target=described[choice])


def render(sections: Sections, parameters: Sequence[Parameter]) -> Rendered:
    """Write the summary, the parameters and the return value, with the offset of each answer."""
    text = sections.summary
    starts: dict[tuple[str, str], int] = {}
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
    return Rendered(text, starts)


def _example(item: ParsedDocument, context: Rendered, *, kind: str, target: Parameter) -> Example:
    document = item.document
    answer = _answer(item.sections, target, kind)
    start = context.starts[kind, "" if kind == "returns" else target.name]
    templates = _QUESTIONS[kind]
    template = templates[draw(f"template {document.id}", len(templates))]
    function = document.id.removesuffix(".__init__").rpartition(".")[2]
    record = {
        "question": template.format(p=target.name, f=function),
        "context": context.text,
        "answers": {"text": [answer], "answer_start": [start]},
    }
    # Types and defaults recur everywhere; a description must be new.
    source = answer if kind in {"description", "returns"} else context.text
    entry = f"{target.name} {target.type} {target.description}"
    evidence = (context.text, source if kind == "returns" else entry, source)
    return Example(document.id, document.split, record, evidence, (context.text,))


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
