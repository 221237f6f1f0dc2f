"""Texts in files and folders."""

import errno
import gzip
import json
import os
import random
import sys
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from biphasic import rows as reader
from biphasic.data.text import source as module
from biphasic.data.text.source import (
    SourceContext,
    SourceDocument,
    files_fingerprint,
    find_text_files,
    read_text_files,
)
from biphasic.data.text.sources import SourceConfig
from biphasic.errors import DataError
from biphasic.tasks.inputs import open_input

ANY_JSON_LINES = pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
PACKED = pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst"])
TEXTS = ["naïve 日本語 👩‍👩‍👧‍👦", "two\nlines\r\n", " tab\t\x00 \u2028 end", ""]


def json_lines(rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    if path.suffix.lower() == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".zst":
        content = zstandard.compress(content)
    path.write_bytes(content)
    return path


def write_parquet(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def read(path: Path, **options) -> list[SourceDocument]:
    return list(read_text_files(path, **options))


def refusal(path: Path, **options) -> str:
    with pytest.raises(DataError) as refused:
        read(path, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "A.JSONL.GZ"])
def test_json_lines(tmp_path, name):
    rows = [{"text": text, "n": number} for number, text in enumerate(TEXTS)]
    write(tmp_path / name, json_lines(rows))
    expected = [SourceDocument(f"{name}:{number}", text) for number, text in enumerate(TEXTS, 1)]
    assert read(tmp_path / name) == expected


def test_parquet_over_several_row_groups(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", text=TEXTS, other=[1, 2, 3, 4])
    expected = [SourceDocument(f"a.parquet:{row}", text) for row, text in enumerate(TEXTS, 1)]
    assert read(path) == expected


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_parquet_s_other_kinds_of_text(tmp_path, kind):
    text = pa.array(["a", "b", "a"], kind)
    path = write_parquet(tmp_path / "a.parquet", text=text)
    assert [record.text for record in read(path)] == ["a", "b", "a"]


@pytest.mark.parametrize("suffix", [".txt", ".md", ".TXT"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_plain_file_is_one_document(tmp_path, suffix, text):
    (tmp_path / f"a{suffix}").write_bytes(text.encode())
    assert read(tmp_path / f"a{suffix}") == [SourceDocument(f"a{suffix}", text)]


def test_a_folder_is_read_in_the_order_of_relative_paths(tmp_path):
    for name in ("b.txt", "a/z.md", "a.txt", "a/b/c.txt", "B.txt"):
        write(tmp_path / name, name)
    write(tmp_path / "a/b.jsonl", json_lines([{"text": "1"}, {"text": "2"}]))
    ids = ["B.txt", "a.txt", "a/b.jsonl:1", "a/b.jsonl:2", "a/b/c.txt", "a/z.md", "b.txt"]
    assert [record.id for record in read(tmp_path)] == ids
    assert [record.text for record in read(tmp_path)] == [
        *("B.txt", "a.txt", "1", "2", "a/b/c.txt", "a/z.md", "b.txt")
    ]


def test_other_files_of_a_folder_are_ignored_and_counted(tmp_path):
    for name in ("a.txt", "b.pdf", "c.json.gz", ".hidden.txt", ".git/description.txt", "d"):
        write(tmp_path / name, "x")
    found = find_text_files(tmp_path)
    assert found.files == (tmp_path / "a.txt",)
    assert found.num_ignored == 5


def test_nothing_of_a_folder_vanishes(tmp_path):
    write(tmp_path / "in/a.txt", "x")
    write(tmp_path / "elsewhere/b.txt", "y")
    (tmp_path / "in/c.txt").symlink_to(tmp_path / "elsewhere/b.txt")
    (tmp_path / "in/.hidden").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/d.pdf").symlink_to(tmp_path / "none")
    assert [record.text for record in read(tmp_path / "in")] == ["x", "y"]
    linked = tmp_path / "in/linked"
    linked.symlink_to(tmp_path / "elsewhere")
    message = refusal(tmp_path / "in")
    assert message == f"{linked}: a linked folder; list it as a separate source"
    linked.unlink()
    dangling = tmp_path / "in/e.txt"
    dangling.symlink_to(tmp_path / "none")
    assert refusal(tmp_path / "in").startswith(f"{dangling}: not readable (a broken link?)")


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", "x")
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def scandir(path):
        if Path(path).name in ("closed", ".closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    message = refusal(tmp_path)
    assert message == f"{tmp_path / 'closed'}: cannot be read (Permission denied)"
    (tmp_path / "closed").rename(tmp_path / ".closed")
    assert [record.text for record in read(tmp_path)] == ["x"]


def test_a_hidden_folder_given_by_name_is_read(tmp_path):
    write(tmp_path / ".notes/a.txt", "x")
    assert [record.id for record in read(tmp_path / ".notes")] == ["a.txt"]


def test_a_folder_of_text_may_hold_a_file_called_pairs(tmp_path):
    (tmp_path / "pairs.json").write_text("{}")
    (tmp_path / "a.txt").write_text("some text")
    [document] = SourceConfig(source=str(tmp_path)).documents(SourceContext())
    assert document.text == "some text"


def test_ids_and_licences_of_the_rows_themselves(tmp_path):
    rows = [
        {"text": "a", "id": "doc/1", "license": "MIT"},
        {"text": "b", "id": 7, "license": None},
        {"text": "c", "id": None, "license": 3},
        {"text": "d", "id": True},
        {"text": "e", "id": ""},
    ]
    path = write(tmp_path / "a.jsonl", json_lines(rows))
    assert read(path) == [
        SourceDocument("doc/1", "a", license="MIT"),
        SourceDocument("7", "b"),
        SourceDocument("a.jsonl:3", "c"),
        SourceDocument("a.jsonl:4", "d"),
        SourceDocument("a.jsonl:5", "e"),
    ]
    parquet = write_parquet(
        tmp_path / "a.parquet", license=["MIT", None], id=[5, 6], text=["a", "b"]
    )
    assert read(parquet) == [SourceDocument("5", "a", license="MIT"), SourceDocument("6", "b")]


def test_a_null_text_is_an_empty_document(tmp_path):
    assert read(write(tmp_path / "a.jsonl", '{"text": null}')) == [SourceDocument("a.jsonl:1", "")]
    parquet = write_parquet(tmp_path / "a.parquet", text=["a", None])
    assert [record.text for record in read(parquet)] == ["a", ""]


def test_blank_lines_count_but_are_no_documents(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\r\n\n  \n{"text": "b"}')
    assert read(path) == [SourceDocument("a.jsonl:1", "a"), SourceDocument("a.jsonl:4", "b")]


def test_a_byte_order_mark_is_no_text(tmp_path):
    assert read(write(tmp_path / "a.txt", "\ufeffa"))[0].text == "a"
    assert "a.jsonl:2: not valid JSON" in refusal(
        write(tmp_path / "b/a.jsonl", '{"text": "a"}\n\ufeff{"text": "b"}')
    )


@settings(max_examples=25)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=6))
@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("read_bytes", [1, 7, 1 << 16])
def test_lines_do_not_depend_on_how_bytes_arrive(tmp_path_factory, compress, read_bytes, texts):
    suffix = "gz" if compress is gzip.compress else "zst"
    path = tmp_path_factory.mktemp("lines") / f"a.jsonl.{suffix}"
    # Every line is a member (a frame) of its own, as `cat a.gz b.gz` makes them.
    rows = [json_lines([{"text": text}]) for text in texts]
    path.write_bytes(b"".join(map(compress, rows)) or compress(b""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_READ_BYTES", read_bytes)
        assert [record.text for record in read(path)] == texts


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"txt": "a", "id": 1}', "no column 'text' (did you mean 'txt'?); there are id, txt"),
        ("{}", "no column 'text'; there are none"),
        ('{"text": 3}', "'text' is not text but a value of type int"),
        ('{"text": "a"', "not valid JSON"),
    ],
)
@ANY_JSON_LINES
def test_bad_lines_are_named(tmp_path, suffix, line, message):
    path = write(tmp_path / f"a.{suffix}", f'{{"text": "fine"}}\n\n{line}\n')
    assert f"{path}:3: {message}" in refusal(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"txt": ["a"], "id": ["b"]}, "no column 'text' (did you mean 'txt'?); there are id, txt"),
        ({"text": [1]}, "'text' is not text but values of type int64"),
        ({"text": [["a"]]}, "'text' is not text but values of type list<element: string>"),
        ({"text": [b"a"]}, "'text' is not text but values of type binary"),
    ],
)
def test_parquet_without_text_is_refused(tmp_path, columns, message):
    path = write_parquet(tmp_path / "a.parquet", **columns)
    assert refusal(path) == f"{path}: {message}"


@pytest.mark.parametrize("name", ["text", "id"])
def test_parquet_with_two_columns_of_a_name_is_refused(tmp_path, name):
    columns = {"text": ["a"], "id": ["b"], "other": ["c"]}
    names = [name if column == "other" else column for column in columns]
    table = pa.table(columns).rename_columns(names)
    pq.write_table(table, tmp_path / "a.parquet")
    assert refusal(tmp_path).endswith(f"the column '{name}' is named twice")


def test_bytes_that_are_no_utf8_are_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert refusal(tmp_path) == f"{tmp_path / 'a.txt'}: not UTF-8 (byte 3); convert it first"
    text = pa.array([b"fine", b"caf\xe9"]).cast(pa.string(), safe=False)
    path = write_parquet(tmp_path / "a.parquet", text=text)
    assert f"{path}: damaged" in refusal(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-be"])
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_utf16_is_named(tmp_path, encoding, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes('{"text": "Two words"}\n'.encode(encoding))
    message = refusal(path)
    assert str(path) in message
    assert "UTF-16" in message
    assert "convert" in message


def test_a_single_nul_byte_is_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"Two\0 words")
    assert read(tmp_path)[0].text == "Two\0 words"


@PACKED
def test_damaged_compression_is_named_with_the_last_good_line(tmp_path, suffix):
    rows = [{"text": f"{number} " * 50} for number in range(2000)]
    path = write(tmp_path / f"a.{suffix}", json_lines(rows))
    whole = path.read_bytes()
    for damaged in (whole[:-5], whole[: len(whole) // 2], whole + b"junk", b"", b"not compressed"):
        path.write_bytes(damaged)
        message = refusal(path)
        assert f"{path}: damaged {path.suffix} data after line " in message
        assert message.endswith("; copy it again")
    path.write_bytes(whole[:100] + b"\x00\x00\x00\x00" + whole[104:])
    assert str(path) in refusal(path)


def test_a_window_too_large_for_memory_is_no_damage(tmp_path):
    large = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=large).compressobj()
    content = packer.compress(json_lines([{"text": "a"}])) + packer.flush()
    (tmp_path / "a.jsonl.zst").write_bytes(content)
    with pytest.raises(DataError, match="128 MiB; compress it again"):
        list(read_text_files(tmp_path))


def test_what_precedes_damage_has_been_read(tmp_path):
    rows = [{"text": f"{number}"} for number in range(5)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json_lines(rows)) + b"junk")
    records = read_text_files(path)
    assert [next(records).text for _ in range(5)] == ["0", "1", "2", "3", "4"]
    with pytest.raises(DataError, match="after line 5"):
        next(records)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1junkPAR1", b"no parquet at all"])
def test_damaged_parquet_is_named(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    assert f"{tmp_path / 'a.parquet'}: damaged, or not a Parquet file" in refusal(tmp_path)


def test_a_fault_of_the_system_is_no_damage_of_parquet(tmp_path, monkeypatch):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), file)

    def failing(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing)
    with pytest.raises(OSError, match="Input/output error"):
        list(read_text_files(file))
    with pytest.raises(OSError, match="Input/output error"):
        list(open_input(str(file)).rows())


def test_a_damaged_page_of_parquet_is_named(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", text=[f"text {n}" * 20 for n in range(64)])
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    assert f"{path}: damaged, or not a Parquet file" in refusal(path)


@pytest.mark.skipif(sys.platform == "darwin", reason="names are UTF-8 there")
@pytest.mark.parametrize(
    ("file", "source"),
    [(b"caf\xe9/a.txt", b"caf\xe9"), (b"caf\xe9.txt", b"caf\xe9.txt"), (b"caf\xe9.txt", b".")],
)
def test_names_that_are_not_utf_8_are_refused(tmp_path, file, source):
    path = tmp_path / os.fsdecode(file)
    path.parent.mkdir(exist_ok=True)
    path.write_text("text")
    message = refusal(tmp_path / os.fsdecode(source))
    assert message.startswith(r"'caf\udce9")
    assert message.endswith("not UTF-8; rename it")


def test_unreadable_files_are_refused_with_the_accepted_formats(tmp_path):
    assert refusal(tmp_path / "none") == f"{tmp_path / 'none'}: no such file or folder"
    os.mkfifo(pipe := tmp_path / "pipe.jsonl")
    assert refusal(pipe).startswith(f"{pipe}: can be read only once")
    pipe.unlink()
    supported = "supported are .txt, .md, .jsonl, .jsonl.gz, .jsonl.zst, .parquet"
    path = write(tmp_path / "a.json", "{}")
    assert refusal(path) == f"{path}: not a text file by its suffix; {supported}"
    assert refusal(tmp_path) == f"{tmp_path}: no text files in this folder; {supported}"
    (tmp_path / "empty").mkdir()
    assert "no text files in this folder" in refusal(tmp_path / "empty")


@ANY_JSON_LINES
def test_memory_stays_flat(tmp_path, suffix):
    # Text that hardly compresses, so that the file is large too.
    rows = [{"text": random.Random(number).randbytes(4000).hex()} for number in range(400)]  # noqa: S311
    path = write(tmp_path / f"a.{suffix}", json_lines(rows))
    del rows
    tracemalloc.start()
    num_characters = sum(len(record.text) for record in read_text_files(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_characters == 400 * 8000
    assert peak < 1_000_000


@PACKED
def test_a_packed_line_without_end_is_refused_in_little_memory(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(reader, "_LONGEST_LINE", 1 << 22)
    path = write(tmp_path / f"a.{suffix}", b"x" * (1 << 26))
    tracemalloc.start()
    assert refusal(path).startswith(f"{path}: a line of more than 4 MiB")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 25  # of 64 MiB


@PACKED
def test_what_unpacks_to_far_more_than_text_does_is_refused(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(reader, "_LARGE", 1 << 16)
    monkeypatch.setattr(reader, "_MOST_RATIO", 500)
    path = write(tmp_path / f"a.{suffix}", b"\n" * (1 << 22))
    assert refusal(path).startswith(f"{path}: decompresses to more than 500 times its size")


@ANY_JSON_LINES
def test_lines_are_bounded(tmp_path, monkeypatch, suffix):
    path = write(tmp_path / f"a.{suffix}", b'{"text": "' + b"x" * 100 + b'"}\n')
    assert len(read(path)[0].text) == 100
    monkeypatch.setattr(reader, "_LONGEST_LINE", 100)
    assert "a line of more than" in refusal(path)


def test_a_plain_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_WHOLE_BYTES", 3)
    assert read(write(tmp_path / "a.txt", "abc"))[0].text == "abc"
    assert "split it" in refusal(write(tmp_path / "b.txt", "abcd"))


@pytest.mark.parametrize("rows_per_group", [10, 1000])
def test_memory_stays_flat_for_parquet(tmp_path, monkeypatch, rows_per_group):
    monkeypatch.setattr(reader, "_PARQUET_ROWS", 8)
    texts = [random.Random(number).randbytes(8000).hex() for number in range(400)]  # noqa: S311
    path = tmp_path / "a.parquet"
    options = {"row_group_size": rows_per_group, "write_batch_size": 8, "use_dictionary": False}
    pq.write_table(pa.table({"text": texts}), path, **options)
    before = pa.total_allocated_bytes()
    peak = max(pa.total_allocated_bytes() - before for _ in read_text_files(path))
    assert path.stat().st_size > 3_000_000
    # A page of 1 MB, the buffer of as much, and the rows.
    assert peak < 2_500_000


def test_fingerprints_follow_names_sizes_and_contents(tmp_path):
    path = write(tmp_path / "in/a.txt", "abc")
    before = files_fingerprint(tmp_path, [path])
    assert (before["count"], before["bytes"]) == (1, 3)
    assert files_fingerprint(tmp_path, [path, tmp_path / "in"]) == before
    assert files_fingerprint(tmp_path / "in", [path]) != before  # another relative name
    os.utime(path, ns=(1, 1))
    assert files_fingerprint(tmp_path, [path]) == before
    for text in ("abcd", "xyz"):
        path.write_text(text)
        os.utime(path, ns=(1, 1))
        assert files_fingerprint(tmp_path, [path]) != before
    path.write_text("abc")
    assert files_fingerprint(tmp_path, [path]) == before


def test_large_sources_are_hashed_by_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WHOLE_BYTES", 100)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 4)
    monkeypatch.setattr(module, "_NUM_BLOCKS", 11)
    large, small = write(tmp_path / "large.txt", "0" * 200), write(tmp_path / "small.txt", "1" * 9)

    def is_seen(path, position):
        files, before = [large, small], path.read_text()
        fingerprint = files_fingerprint(tmp_path, files)
        path.write_text(before[:position] + "x" + before[position + 1 :])
        seen = files_fingerprint(tmp_path, files) != fingerprint
        path.write_text(before)
        assert files_fingerprint(tmp_path, files) == fingerprint
        return seen

    # 12 blocks: 2, and 11 * 200 // 209 = 10 of those that the sources share.
    starts = [196 * number // 11 for number in range(12)]
    expected = [position for start in starts for position in range(start, start + 4)]
    assert [position for position in range(200) if is_seen(large, position)] == expected
    assert [position for position in range(9) if not is_seen(small, position)] == [4]
    same = files_fingerprint(tmp_path, [small, large])
    assert files_fingerprint(tmp_path, [large, small]) == same
