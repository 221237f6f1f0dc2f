"""Retrieval: find the documentation that a one-line summary comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from biphasic.tasks.builtin.examples import Example, ParsedDocument
from biphasic.tasks.builtin.sections import Sections, sentences

MIN_QUERY_WORDS = 5
MAX_QUERY_WORDS = 30
MIN_TEXT_WORDS = 20
MAX_TEXT_WORDS = 70
BLANK = "_"


def summary_examples(parsed: Sequence[ParsedDocument]) -> Iterator[Example]:
    """Yield the summary as the query and the rest as the document, the name blanked in both."""
    for item in parsed:
        document = item.document
        query = blank_own_name(item.sections.summary, name=document.id)
        text = blank_own_name(_rest(item.sections), name=document.id)
        if not MIN_QUERY_WORDS <= len(query.split()) <= MAX_QUERY_WORDS:
            continue
        if len(text.split()) < MIN_TEXT_WORDS or query.lower().rstrip(".") in text.lower():
            continue
        record = {"query": query, "text": text}
        evidence = (item.sections.summary, _rest(item.sections))
        yield Example(document.id, document.split, record, evidence, (query, text))


def blank_own_name(text: str, *, name: str) -> str:
    """Blank the last part of a qualified name wherever it occurs as a word."""
    last_part = re.escape(name.rpartition(".")[2])
    return re.sub(rf"(?<!\w)(?:\w+\.)*{last_part}(?!\w)", BLANK, text, flags=re.IGNORECASE)


def _rest(sections: Sections) -> str:
    """Return the text after the summary: prose, parameters, return value, cut by words."""
    prose = [sentence for paragraph in sections.prose for sentence in sentences(paragraph)]
    entries = [f"{entry.name}: {entry.description}" for entry in sections.parameters]
    words = " ".join([*prose[1:], *entries, sections.returns]).split()
    return " ".join(words[:MAX_TEXT_WORDS])
