"""Token classification: parameter names, types and defaults in flattened parameter sections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from biphasic.tasks.builtin.examples import Example, ParsedDocument, draw
from biphasic.tasks.builtin.sections import Parameter

MIN_TOKENS = 15
MAX_TOKENS = 60
MAX_TYPE_TOKENS = 10
MAX_DEFAULT_TOKENS = 4
TAGS = ("O", "B-DEFAULT", "I-DEFAULT", "B-NAME", "I-NAME", "B-TYPE", "I-TYPE")

# Words only: colons, brackets and full stops would reveal names and types.
_TOKEN = re.compile(r"-?\w+(?:[.'/-]\w+)*")
_CUES: tuple[tuple[str, ...], ...] = ((), ("default",), ("defaults", "to"), ())


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
    """Write an entry as running text: name, type, default, description; empty if unsuitable.

    The hash of `key` chooses the words before the default (`default`, `defaults to`, none), so they
    are not a reliable clue.
    """
    kind = _TOKEN.findall(parameter.type)
    default = _TOKEN.findall(parameter.default)
    description = _TOKEN.findall(parameter.description)
    if len(kind) > MAX_TYPE_TOKENS or len(default) > MAX_DEFAULT_TOKENS or not description:
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
