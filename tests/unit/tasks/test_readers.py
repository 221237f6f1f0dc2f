from __future__ import annotations

import csv
import re

import pytest

from biphasic.errors import DataError
from biphasic.rows import Row, rows
from biphasic.tasks.kinds.tagging import read_conll

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


def write(tmp_path, name: str, content: str):
    path = tmp_path / name
    path.write_bytes(content.encode())
    return path


def refused(path, line, message):
    with pytest.raises(DataError, match=re.escape(f"{path}:{line}: ") + message):
        list(rows(path))


def test_csv_has_quotes_and_rows_of_several_lines(tmp_path):
    content = '\ufefftext,label\r\n"a, ""b""\nc",x\r\n it\'s "so",y\r\n'
    found = rows(write(tmp_path, "a.csv", content))
    assert [(row.number, row.value) for row in found] == [
        (2, {"text": 'a, "b"\nc', "label": "x"}),
        (4, {"text": ' it\'s "so"', "label": "y"}),
    ]


def test_csv_fields_may_be_long(tmp_path):
    limit = csv.field_size_limit()
    [row] = rows(write(tmp_path, "a.csv", f"text,label\n{'x' * 200_000},y\n"))
    assert len(row.value["text"]) == 200_000
    assert csv.field_size_limit() == limit


def test_tsv_has_no_quotes(tmp_path):
    found = rows(write(tmp_path, "a.tsv", 'text\tlabel\r\n"a b\tx\r\n\tc\u2028d\n'))
    assert [row.value for row in found] == [
        {"text": '"a b', "label": "x"},
        {"text": "", "label": "c\u2028d"},
    ]


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("", 1, "no header"),
        ("\na,b\n", 1, "no header"),
        ("a,a\n", 1, "the column 'a' is named twice"),
        ("a,b\n1,2\n1\n", 3, "1 fields, but the header names 2: a, b"),
        ("a,b\n1,2,3\n", 2, "3 fields, but the header names 2: a, b"),
        ("a,b\n1,2\n\n", 3, "an empty line; remove it"),
        ("a\n1\n\n", 3, 'an empty line; remove it, or write ""'),
        ('a,b\n"1\n2",3\n1,"2\n', 4, "not valid CSV"),
        ('a,b\n"1"2,3\n', 2, "not valid CSV"),
        ("a,b\n1\0,2\n", 2, "a NUL byte"),
    ],
)
def test_csv_that_cannot_be_used(tmp_path, content, line, message):
    refused(write(tmp_path, "a.csv", content), line, message)


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("a\tb\n1\t2\n1 2\n", 3, "1 fields, but the header names 2: a, b"),
        ("a\tb\n1\t2\t\n", 2, "3 fields, but the header names 2: a, b"),
        ("a\tb\n1\t2\n\n", 3, "an empty line"),
    ],
)
def test_tsv_that_cannot_be_used(tmp_path, content, line, message):
    refused(write(tmp_path, "a.tsv", content), line, message)


def test_a_column_named_twice_is_refused_among_very_many(tmp_path):
    names = [f"c{number}" for number in range(60_000)]
    wide = write(tmp_path, "a.csv", ",".join(names) + "\n" + "," * 59_999 + "\n")
    assert [len(row.value) for row in rows(wide)] == [60_000]
    repeated = write(tmp_path, "b.csv", ",".join([*names, "c7"]) + "\n")
    refused(repeated, 1, "the column 'c7' is named twice")


def read_sentences(tmp_path, content: str, **columns: int) -> list[Row]:
    path = tmp_path / "a.conll"
    path.write_bytes(content.encode())
    return read_conll(path, token_column=columns.get("token"), tag_column=columns.get("tag"))


def sentences(rows: list[Row]) -> list[list[tuple[str, str]]]:
    return [list(zip(row.value["tokens"], row.value["tags"], strict=True)) for row in rows]


def test_columns_by_spaces_with_documents_and_hashes(tmp_path):
    rows = read_sentences(tmp_path, NEWS)
    assert sentences(rows) == [
        [("EU", "B-ORG"), ("rejects", "O")],
        [("#", "O"), ("1", "O")],
        [("#", "B-PER")],
    ]
    assert [row.value["id"] for row in rows] == ["3", "8", "12"]


def test_counted_tokens_as_in_universal_ner(tmp_path):
    rows = read_sentences(tmp_path, UNIVERSAL)
    assert sentences(rows) == [[("O", "O"), ("Miramar", "B-LOC")], [("#", "O"), ("1", "O")]]
    assert [row.value["id"] for row in rows] == ["x-0001", "x-0002"]


def test_comments_may_look_like_columns(tmp_path):
    content = "# sent_id = x1\n# text = O Canada\nO NN x O\n\n# sent_id = x2\n1 CD x O\n"
    rows = read_sentences(tmp_path, content)
    assert sentences(rows) == [[("O", "O")], [("1", "O")]]
    assert [row.value["id"] for row in rows] == ["x1", "x2"]


def test_tabs_leave_spaces_and_hashtags_to_tokens(tmp_path):
    rows = read_sentences(tmp_path, "#ff\tO\r\nNew York\tB-LOC\r\n\u00a0x\u3000\tO\r\n\r\n# ok\tO")
    assert sentences(rows) == [
        [("#ff", "O"), ("New York", "B-LOC"), ("\u00a0x\u3000", "O")],
        [("# ok", "O")],
    ]


def test_a_column_of_ones_alone_is_not_a_count(tmp_path):
    assert sentences(read_sentences(tmp_path, "1 CD O\n\nx NN B-Y\n")) == [
        [("1", "O")],
        [("x", "B-Y")],
    ]


def test_nothing_but_empty_lines_and_comments(tmp_path):
    assert read_sentences(tmp_path, "\n# x\n\n") == []
