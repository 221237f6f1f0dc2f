from __future__ import annotations

import csv
import re

import pytest

from biphasic.errors import DataError
from biphasic.tasks.custom.tables import read_csv, read_tsv


def write(tmp_path, name: str, content: str):
    path = tmp_path / name
    path.write_bytes(content.encode())
    return path


def refused(read, path, line, message):
    with pytest.raises(DataError, match=re.escape(f"{path}:{line}: ") + message):
        list(read(path))


def test_csv_has_quotes_and_rows_of_several_lines(tmp_path):
    content = '\ufefftext,label\r\n"a, ""b""\nc",x\r\n it\'s "so",y\r\n'
    rows = read_csv(write(tmp_path, "a.csv", content))
    assert [(row.number, row.value) for row in rows] == [
        (2, {"text": 'a, "b"\nc', "label": "x"}),
        (4, {"text": ' it\'s "so"', "label": "y"}),
    ]


def test_csv_fields_may_be_long(tmp_path):
    limit = csv.field_size_limit()
    [row] = read_csv(write(tmp_path, "a.csv", f"text,label\n{'x' * 200_000},y\n"))
    assert len(row.value["text"]) == 200_000
    assert csv.field_size_limit() == limit


def test_tsv_has_no_quotes(tmp_path):
    rows = read_tsv(write(tmp_path, "a.tsv", 'text\tlabel\r\n"a b\tx\r\n\tc\u2028d\n'))
    assert [row.value for row in rows] == [
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
        ("a,b\n1,2\n\n", 3, "an empty line"),
        ('a,b\n"1\n2",3\n1,"2\n', 4, "not valid CSV"),
        ('a,b\n"1"2,3\n', 2, "not valid CSV"),
        ("a,b\n1\0,2\n", 2, "a NUL byte"),
    ],
)
def test_csv_that_cannot_be_used(tmp_path, content, line, message):
    refused(read_csv, write(tmp_path, "a.csv", content), line, message)


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("a\tb\n1\t2\n1 2\n", 3, "1 fields, but the header names 2: a, b"),
        ("a\tb\n1\t2\t\n", 2, "3 fields, but the header names 2: a, b"),
        ("a\tb\n1\t2\n\n", 3, "an empty line"),
    ],
)
def test_tsv_that_cannot_be_used(tmp_path, content, line, message):
    refused(read_tsv, write(tmp_path, "a.tsv", content), line, message)


def test_a_column_named_twice_is_found_among_very_many(tmp_path):
    names = [f"c{number}" for number in range(60_000)]
    wide = write(tmp_path, "a.csv", ",".join(names) + "\n" + "," * 59_999 + "\n")
    assert [len(row.value) for row in read_csv(wide)] == [60_000]
    repeated = write(tmp_path, "b.csv", ",".join([*names, "c7"]) + "\n")
    refused(read_csv, repeated, 1, "the column 'c7' is named twice")
