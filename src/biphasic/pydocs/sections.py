"""Parses docstrings: summary, parameters and return value, in numpydoc or Google style."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_ROLE = re.compile(r":[a-z]+(?::[a-z]+)*:`~?([^`<]*?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"\[([^\]\n]+)\]\([^)\s]+\)")
_LITERAL = re.compile(r"`{1,2}~?([^`\n]+?)`{1,2}_?")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=[^\s*])([^*\n]+?)(?<=\S)\1(?![\w*])")
_BRACKETED = re.compile(r"(?<!\w)\[(`[^`\n]+`)\]")
_FOOTNOTE = re.compile(r"\s*\[#?\w+\]_")

_PARAMETER_HEADS = frozenset(
    {"parameters", "other parameters", "args", "arguments", "keyword args", "keyword arguments"}
)
_RETURN_HEADS = frozenset({"returns", "return"})
_HEAD = re.compile(r"^( *)([A-Z][A-Za-z]+(?: [A-Za-z]+)?)( *:+)?$")
_RULE = re.compile(r"^ *[-=~]{3,}$")

_NUMPY_ENTRY = re.compile(r"^(\*{0,2}[A-Za-z_]\w*)(?:\s*:\s+?(\S.*)|\s+:\s*|\s*:)?$")
_GOOGLE_ENTRY = re.compile(r"^[`*]{0,2}([A-Za-z_]\w*)[`*]{0,2}(?: ?\((.*?)\))?\s*:(?:\s+(.*))?$")
_DEFAULT = re.compile(
    r"[,;(\s]*\b(?:by )?defaults?(?: value)?(?: ?[=:] ?| is | to | )\s*(?P<value>\S.*?)\)?$",
    re.IGNORECASE,
)
_DEFAULT_SENTENCE = re.compile(
    r"\s*(?:\(default|\(?\b(?:Defaults?|The default|default(?=:)))(?: value)?"
    r"(?: ?[=:] ?| is | to )\s*(?P<value>[^\s,;()]+?)\)?[.,]?$"
)
_OPTIONAL = re.compile(r"[,;(\s]*\b(?:optional\b|default(?=\)))\)?", re.IGNORECASE)
_SENTENCE_END = re.compile(
    r"(?<![.\s][a-zA-Z])(?<!e\.g)(?<!i\.e)(?<! vs)(?<!cf)[.!?](?=\s+[A-Z(]|$)"
)


@dataclass(frozen=True)
class Parameter:
    """One entry of a parameter section, in plain text on one line."""

    name: str
    type: str
    default: str
    description: str


@dataclass(frozen=True)
class Sections:
    """A parsed docstring; every text is without markup, on one line."""

    summary: str  # the first sentence
    prose: tuple[str, ...]  # paragraphs of prose before the first section, including the summary
    parameters: tuple[Parameter, ...]
    returns: str  # description of the return value


def plain(text: str) -> str:
    """Remove reStructuredText and Markdown markup: roles, links, literals, emphasis."""
    text = _FOOTNOTE.sub("", _ROLE.sub(r"\1", text))
    text = _BRACKETED.sub(r"\1", _LINK.sub(r"\1", text))
    return _EMPHASIS.sub(r"\2", _LITERAL.sub(r"\1", text))


def flat(text: str) -> str:
    """Join plain text into one line."""
    return " ".join(plain(text).split())


def sentences(paragraph: str) -> list[str]:
    """Split a one-line paragraph into sentences."""
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(paragraph)), len(paragraph)]
    pieces = (paragraph[start:end].strip() for start, end in pairwise(cuts))
    return [piece for piece in pieces if piece]


def parse_sections(body: str) -> Sections:
    """Parse the cleaned body of a docstring."""
    lines = body.split("\n")
    opening, blocks = _blocks(lines)
    prose = tuple(_paragraphs(opening))
    parameters: list[Parameter] = []
    returns = ""
    for head, is_numpy, block in blocks:
        if head in _PARAMETER_HEADS:
            parameters.extend(_parameters(block, is_numpy=is_numpy))
        elif head in _RETURN_HEADS and not returns:
            returns = _returns(block, is_numpy=is_numpy)
    summary = sentences(prose[0])[0] if prose else ""
    return Sections(summary, prose, tuple(parameters), returns)


def _blocks(lines: list[str]) -> tuple[list[str], list[tuple[str, bool, list[str]]]]:
    """Split lines into the introduction and the sections `(head, is_numpy, lines)`."""
    opening: list[str] = []
    blocks: list[tuple[str, bool, list[str]]] = []
    current = opening
    indent = 0
    is_numpy = True
    for place, line in enumerate(lines):
        follower = lines[place + 1] if place + 1 < len(lines) else ""
        head = _HEAD.match(line)
        underlined = bool(head and _RULE.match(follower))
        is_google = head and head[3] and follower.strip() and _indent(follower) > len(head[1])
        if head and (underlined or is_google):
            indent, is_numpy = len(head[1]), underlined
            current = []
            blocks.append((head[2].lower(), underlined, current))
        elif _RULE.match(line):
            continue
        elif blocks and not is_numpy and line.strip() and _indent(line) <= indent:
            current = []  # prose after an indented section belongs to no section
            is_numpy = True
        else:
            current.append(line)
    return opening, blocks


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield paragraphs of prose, without directives, lists, code, formulas or indented blocks."""
    for paragraph in "\n".join(lines).split("\n\n"):
        text = paragraph.strip("\n")
        is_prose = text[:1].isalpha() or bool(re.match(r"`|:[a-z:]+:`", text))
        marks = (">>>", "\\", ".. ", "```", "\n- ", "\n* ", "\n  ", "|", "$", "::", "{", "=", "\n:")
        if is_prose and not any(mark in text for mark in marks) and " " in text:
            yield flat(text)


def _parameters(block: list[str], *, is_numpy: bool) -> Iterator[Parameter]:
    for head, description in _entries(block):
        match = (_NUMPY_ENTRY if is_numpy else _GOOGLE_ENTRY).match(head)
        if match is None:
            continue
        parts = [] if is_numpy else [match[3] or ""]
        for line in description:
            if not line.strip() or line.lstrip().startswith((">>>", ".. ", "- ", "* ")):
                if any(parts):
                    break  # the first paragraph of prose is the description
                continue
            parts.append(line)
        yield _parameter(match[1].lstrip("*"), flat(match[2] or ""), flat(" ".join(parts)))


def _parameter(name: str, kind: str, description: str) -> Parameter:
    default = _DEFAULT.search(kind)
    if default:
        kind = kind[: default.start()]
    else:
        default = _DEFAULT_SENTENCE.search(description)
        if default:
            description = description[: default.start()].rstrip()
    value = default["value"].strip(" .,\"'()") if default else ""
    return Parameter(name, _OPTIONAL.sub("", kind).strip(" ,;."), value, description)


def _entries(block: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Group a section's lines into entries: a least-indented line and the deeper ones below."""
    margin = min((_indent(line) for line in block if line.strip()), default=0)
    head, below = "", []
    for line in block:
        if line.strip() and _indent(line) == margin:
            if head:
                yield head, below
            head, below = line.strip(), []
        else:
            below.append(line)
    if head:
        yield head, below


def _returns(block: list[str], *, is_numpy: bool) -> str:
    """Return the description of the first returned value."""
    for head, below in _entries(block):
        text = " ".join("\n".join(below).strip("\n").split("\n\n")[0].split("\n"))
        if not is_numpy:
            _, separator, after = head.partition(": ")
            text = f"{after if separator else head} {text}"
        return flat(text)
    return ""
