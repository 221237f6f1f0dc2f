from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from unicodedata import normalize

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from biphasic.errors import DataError
from biphasic.files import json_value
from biphasic.rows import plain_name, read_lines, rows


def refused(path, line, message):
    with pytest.raises(DataError, match=re.escape(f"{path}:{line}: ") + message):
        list(rows(path))


def test_a_byte_order_mark_and_windows_line_ends_are_no_content(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}')
    assert [(row.number, row.value) for row in rows(path)] == [(1, {"a": 1}), (2, {"a": 2})]


def test_only_line_feeds_end_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x\u2028y\x85z"}\n{"a": "2"}\n', encoding="utf-8")
    assert [row.value["a"] for row in rows(path)] == ["x\u2028y\x85z", "2"]


def test_packed_files_are_unpacked(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress('{"a": "é"}\n'.encode()))
    assert [row.value for row in rows(path)] == [{"a": "é"}]
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: damaged \.gz data after line 0 "):
        list(read_lines(path))
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-12])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: damaged \.gz data"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("é".encode("latin-1"), r"not UTF-8 \(byte 0xe9 after 0 others\)"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a": "x\0"}', "a NUL byte"),
        (b"", r"not valid JSON \(empty\)"),
        (b"{'a': 1}", "not valid JSON"),
        (b"[1]", "expected one JSON object per line"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (rb'{"a": "\ud83d"}', r"not valid JSON \(an unpaired surrogate"),
        (rb'{"a": ["\uDE00"]}', r"not valid JSON \(an unpaired surrogate"),
    ],
)
def test_lines_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + content + b"\n")
    refused(path, 2, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"abc\0", "1 of the first 4 bytes are NUL, as in UTF-16"), (b"abcd\0", "a NUL byte;")],
)
def test_lines_with_a_quarter_of_nul_bytes_are_of_utf_16(tmp_path, content, message):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    refused(path, 1, ".*" + message)


def test_lines_of_text_are_rows(tmp_path):
    path = write(tmp_path, "a.txt", " first \r\nsecond")
    assert [(row.where, row.value) for row in rows(path)] == [
        (f"{path}:1", {"text": " first "}),
        (f"{path}:2", {"text": "second"}),
    ]


def test_a_byte_order_mark_alone_is_a_blank_line(tmp_path):
    path = write(tmp_path, "a.jsonl", "\ufeff")
    assert [*rows(path, skips_blank=True)] == []
    refused(path, 1, r"not valid JSON \(empty\)")


def test_a_missing_field_is_named_beside_the_others(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"a": 1, "b": 2}\n{}')
    first, second = rows(path)
    for row, others in ((first, "'a', 'b'"), (second, "none")):
        for read in (row.text, row.real):
            with pytest.raises(DataError) as error:
                read("c")
            assert str(error.value) == f"{row.where}: no field 'c'; there are {others}"


def outcome(parse, text):
    try:
        return repr(parse(text))
    except ValueError as error:
        return str(error)


JSON_PARTS = ["{", "}", "[", "]", ":", ",", '"a"', '"b\\n"', "1", "-0.5", "NaN", "true", "x"]
SPACES = [" ", "\n", "\t", "\r", "\x0b", "\x0c", "\xa0", "\u2028", "\ufeff"]


@given(st.lists(st.sampled_from(JSON_PARTS + SPACES), max_size=8).map("".join))
@example(' {"a":1} x').via("text after white space")
@example('\xa0{"a":1}').via("white space that JSON has not")
@example("")
def test_json_is_read_as_the_standard_library_reads_it(text):
    counted = Counter(re.findall('"[ab]', text))
    assume(max(counted.values(), default=0) < 2)  # a repeated key is refused
    assume(not text.startswith("\ufeff"))  # which files have as bytes, and `json.loads` mentions
    assert outcome(json_value, text) == outcome(json.loads, text)


def test_names_are_compared_without_what_nobody_sees():
    for name in (" a\tb\x1f ", "\x1ca", "a\x7f", "e\u0301\u200b", "\ufeffa\xa0", "", "\x0ba"):
        unseen = {ord(sign): None for sign in "\u200b\ufeff"} | {0xA0: " "}
        assert plain_name(name) == normalize("NFC", name.translate(unseen)).strip()


def test_whole_surrogate_pairs_are_one_character(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(rb'{"a": "\ud83d\ude00"}')
    assert next(rows(path)).value == {"a": "😀"}


@pytest.mark.parametrize("value", ["1" + "0" * 309, "-1e999", "NaN", "true", "null", '"3"', "[3]"])
def test_numbers_that_are_not_finite_or_none(tmp_path, value):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": 3}}\n{{"a": {value}}}\n')
    first, second = rows(path)
    assert first.real("a") == 3.0
    with pytest.raises(DataError, match=r"a\.jsonl:2: 'a' .*finite") as error:
        second.real("a")
    assert len(str(error.value)) < len(str(path)) + 120


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match="none: no such file"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(DataError, match="cannot be read"):
        list(read_lines(tmp_path))


def write(tmp_path, name: str, content: str):
    path = tmp_path / name
    path.write_bytes(content.encode())
    return path


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


def test_a_column_named_twice_is_refused_among_very_many(tmp_path):
    names = [f"c{number}" for number in range(60_000)]
    wide = write(tmp_path, "a.csv", ",".join(names) + "\n" + "," * 59_999 + "\n")
    assert [len(row.value) for row in rows(wide)] == [60_000]
    repeated = write(tmp_path, "b.csv", ",".join([*names, "c7"]) + "\n")
    refused(repeated, 1, "the column 'c7' is named twice")


def test_a_single_text_may_be_the_name_of_its_column(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text\nfirst\ntext\n")
    assert [row.text("text") for row in rows(path)] == ["first", "text"]
