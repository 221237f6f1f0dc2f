from __future__ import annotations

import re

import pytest

from biphasic.errors import DataError
from biphasic.tasks.custom.conll import read_conll
from biphasic.tasks.formats.rows import Row

NEWS = """\
-DOCSTART- -X- O O

EU NNP I-NP B-ORG
rejects VBZ I-VP O

-DOCSTART- -X- O O

# # I-NP O
1 CD I-NP O


# NN I-NP B-PER
"""
UNIVERSAL = """\
# newdoc id = x
# sent_id = x-0001
# text = O Miramar is
1\tO\tO\t-\tann
2\tMiramar\tB-LOC\t-\tann

# sent_id = x-0002
# text = #1
1\t#\tO\t-\tann
2\t1\tO\t-\tann
"""


def read(tmp_path, content: str, **columns: int) -> list[Row]:
    path = tmp_path / "a.conll"
    path.write_bytes(content.encode())
    return read_conll(path, token_column=columns.get("token"), tag_column=columns.get("tag"))


def sentences(rows: list[Row]) -> list[list[tuple[str, str]]]:
    return [list(zip(row.value["tokens"], row.value["tags"], strict=True)) for row in rows]


def test_columns_by_spaces_with_documents_and_hashes(tmp_path):
    rows = read(tmp_path, NEWS)
    assert sentences(rows) == [
        [("EU", "B-ORG"), ("rejects", "O")],
        [("#", "O"), ("1", "O")],
        [("#", "B-PER")],
    ]
    assert [row.value["id"] for row in rows] == ["3", "8", "12"]


def test_counted_tokens_as_in_universal_ner(tmp_path):
    rows = read(tmp_path, UNIVERSAL)
    assert sentences(rows) == [[("O", "O"), ("Miramar", "B-LOC")], [("#", "O"), ("1", "O")]]
    assert [row.value["id"] for row in rows] == ["x-0001", "x-0002"]


def test_comments_may_look_like_columns(tmp_path):
    content = "# sent_id = x1\n# text = O Canada\nO NN x O\n\n# sent_id = x2\n1 CD x O\n"
    rows = read(tmp_path, content)
    assert sentences(rows) == [[("O", "O")], [("1", "O")]]
    assert [row.value["id"] for row in rows] == ["x1", "x2"]


def test_tabs_leave_spaces_and_hashtags_to_tokens(tmp_path):
    rows = read(tmp_path, "#ff\tO\r\nNew York\tB-LOC\r\n\u00a0x\u3000\tO\r\n\r\n# ok\tO")
    assert sentences(rows) == [
        [("#ff", "O"), ("New York", "B-LOC"), ("\u00a0x\u3000", "O")],
        [("# ok", "O")],
    ]


def test_columns_may_be_named_by_number(tmp_path):
    rows = read(tmp_path, "B-X a O\nI-X b O\n", token=2, tag=1)
    assert sentences(rows) == [[("a", "B-X"), ("b", "I-X")]]
    with pytest.raises(DataError, match=r"a\.conll:1: token in column 4 and tag in column 3, but"):
        read(tmp_path, "a b O\n", token=4)
    with pytest.raises(DataError, match="there is 1 column"):
        read(tmp_path, "a\nb\n")


def test_a_column_of_ones_alone_is_not_a_count(tmp_path):
    assert sentences(read(tmp_path, "1 CD O\n\nx NN B-Y\n")) == [[("1", "O")], [("x", "B-Y")]]


@pytest.mark.parametrize(
    ("content", "line"),
    [("a O\nb\n", 2), ("a\tO\n\nb O\n", 3), ("a O\n# comment below a token\n", 2)],
)
def test_lines_of_another_width(tmp_path, content, line):
    with pytest.raises(DataError, match=re.escape(f"a.conll:{line}: ") + ".* columns, but the"):
        read(tmp_path, content)


def test_nothing_but_empty_lines_and_comments(tmp_path):
    assert read(tmp_path, "\n# x\n\n") == []
