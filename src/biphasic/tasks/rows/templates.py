"""Templates that join the fields of an example into one text."""

from __future__ import annotations

import re

from biphasic.rows import Row

PAIR_TEMPLATE = "Sentence 1: {text_a}\nSentence 2: {text_b}"  # default template of pairs

_FIELD = re.compile(r"\{(\w+)\}")
_TITLE_TO_TEXT = re.compile(r"\{title\}.*?(?=\{text\})", re.DOTALL)
_HIDDEN = {"id", "label", "value"}


def template_fields(template: str) -> tuple[str, ...]:
    """Return the distinct names in braces, in order."""
    return tuple(dict.fromkeys(_FIELD.findall(template)))


def check_template(template: str) -> None:
    """Check a template of a text."""
    fields = template_fields(template)
    if not fields:
        raise ValueError(f"the template {template!r} names no field, such as {{text}}")
    if hidden := _HIDDEN.intersection(fields):
        raise ValueError(f"the template must not name {{{min(hidden)}}}: it is not text")


def check_retrieval_template(template: str, *, known: tuple[str, ...]) -> None:
    """Check a template of queries or documents."""
    fields = template_fields(template)
    if "text" not in fields or not set(fields) <= set(known):
        names = " and ".join(f"{{{name}}}" for name in known)
        raise ValueError(f"the template {template!r} must name {{text}}, and nothing but {names}")
    if fields[0] == "text" and "title" in fields:
        raise ValueError(f"the template {template!r} must name {{title}} before {{text}}")


def fill(template: str, row: Row) -> str:
    """Fill a template with a row's fields."""
    return _FIELD.sub(lambda field: row.text(field[1]), template)


def fill_document(template: str, *, title: str, text: str) -> str:
    """Fill a template with title and text; without a title, all before `{text}` is omitted."""
    if not title:
        template = _TITLE_TO_TEXT.sub("", template)
    values = {"title": title, "text": text}
    return _FIELD.sub(lambda field: values[field[1]], template)
