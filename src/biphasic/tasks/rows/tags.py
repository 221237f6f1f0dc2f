"""BIO2 tags of words."""

from __future__ import annotations

from collections.abc import Sequence

from biphasic.errors import DataError
from biphasic.tasks.rows.row import Row


def is_bio(tag: str) -> bool:
    """Return whether a tag is `O`, `B-TYPE` or `I-TYPE`."""
    return tag == "O" or (tag[:2] in {"B-", "I-"} and len(tag) > 2)


def check_bio(row: Row, tags: Sequence[str]) -> None:
    """Check that tags are valid BIO2 (IOB2): every entity starts with `B-`."""
    previous = "O"
    for position, tag in enumerate(tags):
        if not is_bio(tag):
            raise row.error(
                f"not valid BIO2: {tag!r} at token {position} is neither O, B-TYPE nor I-TYPE",
                token=position,
            )
        if tag.startswith("I-") and previous[2:] != tag[2:]:
            raise row.error(
                f"not valid BIO2: '{tag}' at token {position} follows '{previous}'; an entity "
                f"starts with 'B-{tag[2:]}' (convert files in IOB1)",
                token=position,
            )
        previous = tag


def check_tag_set(labels: Sequence[str], *, where: str) -> None:
    """Check that labels are tags of token classification."""
    for label in labels:
        if not is_bio(label):
            raise DataError(f"{where}: '{label}' is not a BIO2 tag")
    if "O" not in labels:
        raise DataError(f"{where}: the tag 'O' is missing")
