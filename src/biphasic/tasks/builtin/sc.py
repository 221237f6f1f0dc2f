"""Sequence classification: predict the library of a description with names blanked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from biphasic.data.text.pydocs import LIBRARIES, STANDARD_LIBRARY
from biphasic.tasks.builtin.examples import Example, ParsedDocument
from biphasic.tasks.builtin.sections import sentences

MAX_LIBRARIES = 12
MIN_WORDS = 10
MAX_WORDS = 40
MAX_BLANK_SHARE = 0.25
BLANK = "_"

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


def library_labels(parsed: Sequence[ParsedDocument]) -> list[str]:
    """Return the libraries with the most test documents, in alphabetical order."""
    counts = Counter(item.document.library for item in parsed if item.document.split == "test")
    ranked = sorted(counts, key=lambda library: (-counts[library], library))
    return sorted(ranked[:MAX_LIBRARIES])


def library_examples(parsed: Sequence[ParsedDocument], labels: Sequence[str]) -> Iterator[Example]:
    """Yield the first sentences of each document's prose, with its library as the label."""
    for item in parsed:
        document = item.document
        passage = _passage(item.sections.prose)
        if document.library not in labels or len(passage.split()) < MIN_WORDS:
            continue
        text = blank_names(passage, name=document.id)
        if text.split().count(BLANK) <= MAX_BLANK_SHARE * len(text.split()):
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
        return BLANK if is_name or lower == STANDARD_LIBRARY or _IDENTIFIER.search(word) else word

    return _BLANKS.sub(BLANK, _WORD.sub(blank, text))


def _passage(prose: Sequence[str]) -> str:
    """Return the first sentences of the prose that fit into `MAX_WORDS`."""
    words = 0
    chosen = []
    for sentence in (sentence for paragraph in prose for sentence in sentences(paragraph)):
        words += len(sentence.split())
        if words > MAX_WORDS:
            break
        chosen.append(sentence)
    return " ".join(chosen)
