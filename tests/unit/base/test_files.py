"""Files are whole or absent, and damage is named."""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biphasic.errors import (
    BiphasicError,
    CheckpointError,
    ConfigError,
    DataError,
    os_error_text,
    reading,
    visible,
)
from biphasic.files import (
    canonical_json,
    digest,
    expanded,
    file_sha256,
    read_json,
    read_json_object,
    remove_partials,
    write_bytes,
    write_json,
    write_text,
)
from biphasic.store import CHECKPOINT, MANIFEST, complete_folder, is_complete

REMEDY = "delete it and run again"


class CrashError(Exception):
    """Stands for a crash."""


@pytest.fixture(scope="module")
def sealed(tmp_path_factory) -> Path:
    """A complete folder of three files; copy it before you change it."""
    folder = tmp_path_factory.mktemp("sealed") / "state"
    with complete_folder(folder, identity="abc") as partial:
        (partial / "weights.bin").write_bytes(bytes(range(256)))
        (partial / "empty").write_bytes(b"")
        (partial / "below").mkdir()
        (partial / "below" / "notes.txt").write_text("hello")
    return folder


def test_canonical_json_is_one_text_per_value():
    assert canonical_json({"b": [1, 2.5], "a": None}) == '{"a":null,"b":[1,2.5]}'
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(float("nan"))


@given(st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_digest_ignores_the_order_of_keys(value):
    backwards = dict(reversed(value.items()))
    assert digest(value) == digest(backwards)
    assert digest(value) == hashlib.sha256(canonical_json(value).encode()).hexdigest()
    assert digest({**value, "\0new": 1}) != digest(value)


def test_file_sha256(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1.
    assert file_sha256(tmp_path / "f") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


@pytest.mark.parametrize(
    ("write", "content", "expected"),
    [
        (write_text, "é\n", "é\n".encode()),
        (write_bytes, b"\x00\xff", b"\x00\xff"),
        (write_json, {"b": 1, "a": [2]}, b'{\n "a": [\n  2\n ],\n "b": 1\n}\n'),
    ],
)
def test_writers_replace_and_make_folders(tmp_path, write, content, expected):
    path = tmp_path / "new" / "file"
    write(path, content)
    write(path, content)
    assert path.read_bytes() == expected
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_text(path, "old")

    def crash(_descriptor: int) -> None:
        # Before the rename: the new content is on disk under another name only.
        assert path.read_text() == "old"
        raise CrashError

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(CrashError):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at descriptors in /proc")
def test_what_has_its_final_name_is_on_the_disk(tmp_path, monkeypatch):
    flushed: list[str] = []

    def flush(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path).as_posix()
        is_named = (tmp_path / "state").exists() or (tmp_path / "file").exists()
        flushed.append(f"{'after' if is_named else 'before'} {name.split('-')[0]}")

    monkeypatch.setattr("os.fsync", flush)
    with complete_folder(tmp_path / "state") as partial:
        (partial / "below").mkdir()
        (partial / "below/weights").write_text("1")
    # Itself, the folder below, the weights and the manifest; then its name.
    assert flushed == [*["before .partial"] * 4, "after ."]
    (tmp_path / "state").rename(tmp_path / "moved")
    flushed.clear()
    write_text(tmp_path / "file", "1")
    assert flushed == ["before .partial", "after ."]


def test_json_that_is_not_finite_is_refused_before_writing(tmp_path):
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "file", {"loss": float("inf")})
    assert list(tmp_path.iterdir()) == []


def test_read_json_names_the_file(tmp_path):
    with pytest.raises(DataError, match=r"gone\.json: no such file"):
        read_json(tmp_path / "gone.json")
    (tmp_path / "half.json").write_text('{"a": ')
    with pytest.raises(DataError, match=r"half\.json: damaged JSON .*; correct it"):
        read_json(tmp_path / "half.json")
    with pytest.raises(DataError, match=r"half\.json: damaged .*; train it again"):
        read_json(tmp_path / "half.json", remedy="train it again")


def test_manifest_lists_every_file_and_extra_fields(sealed):
    manifest = CHECKPOINT.open(sealed).verify().manifest
    assert manifest["identity"] == "abc"
    assert manifest["files"] == {
        "below/notes.txt": {"bytes": 5, "sha256": hashlib.sha256(b"hello").hexdigest()},
        "empty": {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()},
        "weights.bin": {"bytes": 256, "sha256": hashlib.sha256(bytes(range(256))).hexdigest()},
    }


def test_folder_is_invisible_until_it_is_whole(tmp_path):
    target = tmp_path / "state"
    with complete_folder(target) as partial:
        (partial / "a").write_text("1")
        assert not target.exists()
        assert not is_complete(partial)
    assert is_complete(target)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_exception_leaves_nothing(tmp_path):
    def write_and_crash() -> None:
        with complete_folder(tmp_path / "state") as partial:
            (partial / "a").write_text("1")
            raise CrashError

    with pytest.raises(CrashError):
        write_and_crash()
    assert list(tmp_path.iterdir()) == []


def test_manifest_is_written_after_all_files_and_before_the_rename(tmp_path, monkeypatch):
    order = []
    original = Path.replace

    def spy(self: Path, target: Path) -> Path:
        order.append(Path(target).name)
        if Path(target).name == MANIFEST:
            assert (self.parent / "a").read_text() == "1"
        return original(self, target)

    monkeypatch.setattr(Path, "replace", spy)
    with complete_folder(tmp_path / "state") as partial:
        (partial / "a").write_text("1")
    assert order == [MANIFEST, "state"]


def test_crash_between_files_and_manifest_is_invisible(tmp_path, monkeypatch):
    def crash(_path: Path, _value: object, **_: object) -> None:
        raise CrashError

    monkeypatch.setattr("biphasic.store.write_json", crash)
    with pytest.raises(CrashError), complete_folder(tmp_path / "state") as partial:
        (partial / "a").write_text("1")
    assert list(tmp_path.iterdir()) == []


def test_of_two_writers_the_first_to_finish_stays(tmp_path):
    target = tmp_path / "state"
    with complete_folder(target) as first:
        (first / "a").write_text("first")
        with complete_folder(target) as second:
            (second / "a").write_text("second")
    assert (target / "a").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def write_state(target):
    with complete_folder(target) as partial:
        (partial / "a").write_text("new")
        (partial / "below").mkdir()
        (partial / "below/b").write_text("new")


def test_a_second_writer_may_finish_while_the_first_one_flushes(tmp_path, monkeypatch):
    others = [lambda: write_state(tmp_path / "state")]
    monkeypatch.setattr("biphasic.store.flush", lambda _: others and others.pop()())
    with complete_folder(tmp_path / "state") as first:
        (first / "a").write_text("first")
    assert (tmp_path / "state/a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_what_an_interrupted_deletion_left_is_replaced(tmp_path):
    target = tmp_path / "state"
    (target / "below").mkdir(parents=True)
    (target / "below/b").write_text("half deleted")
    write_state(target)
    assert (target / "below/b").read_text() == "new"


@pytest.mark.parametrize("name", ["thesis.txt", "below/thesis.txt", ""])
def test_foreign_files_are_kept(tmp_path, name):
    theirs = tmp_path / "state" / name  # with no name, a file where the folder belongs
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_text("years of work")
    with pytest.raises(DataError, match=r"move .* away and run again"):
        write_state(tmp_path / "state")
    assert theirs.read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_remove_partials_keeps_complete_folders(tmp_path, sealed):
    shutil.copytree(sealed, tmp_path / "state")
    (tmp_path / ".partial-state-01234567").mkdir()
    (tmp_path / ".partial-state-01234567" / "a").write_text("1")
    (tmp_path / ".partial-other-01234567").write_text("1")
    remove_partials(tmp_path, "state")
    assert {path.name for path in tmp_path.iterdir()} == {"state", ".partial-other-01234567"}
    remove_partials(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"state"}
    remove_partials(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: f.unlink(), "weights.bin: missing; "),
        (
            lambda f: f.write_bytes(f.read_bytes()[:-1]),
            "weights.bin: wrong size (255 bytes, expected 256); ",
        ),
        (
            lambda f: f.write_bytes(f.read_bytes() + b"x"),
            "weights.bin: wrong size (257 bytes, expected 256); ",
        ),
        (
            lambda f: f.write_bytes(b"\x01" + f.read_bytes()[1:]),
            f"weights.bin: damaged (SHA-256 differs from {MANIFEST}); ",
        ),
        (lambda f: (f.parent / MANIFEST).unlink(), f"incomplete (no {MANIFEST}); "),
        (lambda f: (f.parent / MANIFEST).write_text("{"), f"{MANIFEST}: damaged; "),
        (lambda f: (f.parent / MANIFEST).write_text("[]"), f"{MANIFEST}: damaged; "),
        (lambda f: (f.parent / MANIFEST).write_text('{"files":{"a":1}}'), f"{MANIFEST}: damaged; "),
    ],
)
def test_damage_is_named_with_its_remedy(tmp_path, sealed, harm, message):
    folder = tmp_path / "state"
    shutil.copytree(sealed, folder)
    harm(folder / "weights.bin")
    with pytest.raises(CheckpointError) as caught:
        CHECKPOINT.open(folder, remedy=REMEDY).verify()
    assert str(caught.value).startswith(str(folder))
    assert str(caught.value).endswith(message + REMEDY)


def test_the_content_of_another_place_is_named(sealed):
    assert CHECKPOINT.open(sealed, identity="abc").manifest["identity"] == "abc"
    with pytest.raises(CheckpointError, match=f"holds checkpoint abc, not abd; {REMEDY}"):
        CHECKPOINT.open(sealed, identity="abd", remedy=REMEDY)


@pytest.mark.parametrize("name", [MANIFEST, "weights.bin"])
def test_a_file_that_the_system_cannot_look_at_is_not_missing(sealed, monkeypatch, name):
    usual = Path.stat

    def stat(path, **options):
        if path.name == name:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return usual(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(OSError, match="Input/output error"):
        CHECKPOINT.open(sealed, remedy=REMEDY).verify()


@given(place=st.integers(min_value=0), bit=st.integers(0, 7), name=st.sampled_from(["weights.bin"]))
def test_any_flipped_bit_is_reported(sealed, place, bit, name):
    content = bytearray((sealed / name).read_bytes())
    content[place % len(content)] ^= 1 << bit
    copy = sealed.parent / "flipped"
    shutil.copytree(sealed, copy, dirs_exist_ok=True)
    (copy / name).write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=f"{name}: damaged"):
        CHECKPOINT.open(copy, remedy=REMEDY).verify()


@given(place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_flipped_bit_of_the_manifest_is_an_error_or_changes_no_file_entry(sealed, place, bit):
    content = bytearray((sealed / MANIFEST).read_bytes())
    content[place % len(content)] ^= 1 << bit
    copy = sealed.parent / "flipped-manifest"
    shutil.copytree(sealed, copy, dirs_exist_ok=True)
    (copy / MANIFEST).write_bytes(bytes(content))
    intact = json.loads((sealed / MANIFEST).read_text())["files"]
    try:
        found = CHECKPOINT.open(copy, remedy=REMEDY).verify().manifest["files"]
    except BiphasicError as error:
        message = str(error)
        assert message.endswith(REMEDY)
    else:
        assert found == intact


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "9" * 5000, '{"a":' * 3000, "\udcff", '["\\ud800"]']
)
def test_json_that_cannot_be_read_is_named(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(DataError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("text", ["[]", "3", "null", '"a"'])
def test_an_object_is_asked_for_by_name(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match="expected a JSON object"):
        read_json_object(path)


def test_homes_of_unknown_users_are_refused():
    assert expanded("~") == Path.home()
    with pytest.raises(ConfigError, match=r"^~nosuchuser/x: no home folder"):
        expanded("~nosuchuser/x")


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_files_of_a_folder_may_be_read_as_the_umask_says(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with complete_folder(tmp_path / "state") as partial:
            (partial / "tensors").touch(mode=0o600)  # as safetensors creates files
    finally:
        os.umask(before)
    assert (tmp_path / "state/tensors").stat().st_mode & 0o777 == mode


class TestErrors:
    def test_names_neither_break_the_line_nor_steer_the_terminal(self):
        shown = str(DataError("a\n\x1b[31mb\u202ec\u202f1,000 é 漢"))
        assert shown == "a\\u000a\\u001b[31mb\\u202ec\u202f1,000 é 漢"
        # Tags of a flag are not printable; JSON spells them as pairs.
        assert visible("\U000e0067 \udcff") == "\\udb40\\udc67 \\udcff"

    def test_long_texts_are_cut_and_keep_their_end(self):
        shown = str(DataError(f"where: {'x' * 10_000}; the remedy"))
        assert shown.startswith("where: xxx")
        assert shown.endswith("xxx; the remedy")
        assert len(shown) < 2010

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (RecursionError("deep"), "it is nested too deeply"),
            (IsADirectoryError(21, "Is a directory", "x"), "Is a directory"),
            (OSError("no Parquet"), "OSError: no Parquet"),
            (KeyError("a\nb"), "KeyError: 'a\\nb'"),
        ],
    )
    def test_unexpected_errors_name_the_input(self, error, reason):
        with pytest.raises(DataError) as caught, reading("a.json", DataError, remedy="mend it"):
            raise error
        assert str(caught.value) == f"a.json: cannot be read ({reason}); mend it"
        assert caught.value.__cause__ is error

    @pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ESTALE])
    def test_errors_of_the_system_are_no_fault_of_the_input(self, code):
        error = OSError(code, os.strerror(code), "x")
        shown = pytest.raises(OSError, match=os.strerror(code))
        with shown as caught, reading("a.json", DataError, remedy="delete it"):
            raise error
        assert caught.value is error

    @pytest.mark.parametrize(
        "run",
        [lambda path: write_text(path, "x"), file_sha256, read_json],
    )
    def test_errors_of_the_system_name_the_file(self, tmp_path, monkeypatch, run):
        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        (path := tmp_path / "a.json").write_text("{}")
        for module, name in ((os, "fsync"), (hashlib, "file_digest"), (Path, "read_text")):
            monkeypatch.setattr(module, name, fail)
        with pytest.raises(OSError, match="Input/output") as caught:
            run(path)
        assert os_error_text(caught.value) == f"{path}: Input/output error"

    def test_a_lack_of_memory_is_an_error_of_the_system(self):
        shown = pytest.raises(OSError, match="memory")
        with shown as caught, reading("a.json", DataError, remedy="delete it"):
            raise MemoryError
        assert os_error_text(caught.value) == "a.json: does not fit into memory"

    def test_expected_errors_are_unchanged(self):
        with pytest.raises(ConfigError, match=r"^reason$"), reading("a.json", DataError):
            raise ConfigError("reason")
