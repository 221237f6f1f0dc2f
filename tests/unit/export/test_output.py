"""Output folders appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from biphasic.errors import ConfigError, DataError
from biphasic.export.output import find_made, new_folder, sign
from biphasic.store import check_export
from other_user import as_other_user, needs_root


def test_appears_at_the_end(tmp_path):
    with new_folder(tmp_path / "a" / "out") as partial:
        (partial / "file").write_text("x")
        assert not (tmp_path / "a" / "out").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]
    assert (tmp_path / "a" / "out" / "file").read_text() == "x"


def test_failure_leaves_nothing(tmp_path):
    def fail() -> None:
        with new_folder(tmp_path / "out") as partial:
            (partial / "file").write_text("x")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_never_replaces(kind, tmp_path):
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("precious")
    else:
        out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="already exists"), new_folder(out):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_below_a_link_to_nothing_is_refused_before_any_work(tmp_path):
    (tmp_path / "scratch").symlink_to(tmp_path / "unmounted")
    with pytest.raises(ConfigError, match="scratch is a link to nothing"):
        find_made(tmp_path / "scratch/out")


@needs_root
def test_a_place_that_is_not_writable_is_refused_before_any_work():
    def find() -> None:
        with pytest.raises(ConfigError, match="/ is not writable"):
            find_made(Path("/new/out"))

    with as_other_user(find):
        pass


def test_what_appeared_meanwhile_stays(tmp_path):
    out = tmp_path / "out"

    def race() -> None:
        with new_folder(out):
            out.mkdir()

    with pytest.raises(ConfigError, match="already exists"):
        race()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder that was made from a model."""
    with new_folder(tmp_path / "out") as partial:
        (partial / "README.md").write_text("# A model\n\nMine.\n")
        (partial / "below").mkdir()
        (partial / "below" / "weights").write_bytes(b"weights")
        sign(partial, {"model": "a"}, difference=1e-7)
    return tmp_path / "out"


def test_an_output_made_from_the_same_is_kept(made, tmp_path):
    assert find_made(tmp_path / "other", {"model": "a"}) is None
    assert find_made(made) == find_made(made, {"model": "a"})
    assert (find_made(made, {"model": "a"}) or {})["difference"] == 1e-7
    # People may edit what they made.
    card = made / "README.md"
    card.write_text(card.read_text().replace("Mine.", "Mine, and what it is for.") + "\nThe end.\n")
    assert find_made(made, {"model": "a"})


def _rewrite(path: Path) -> None:
    path.write_bytes(b"waights")


def _cut(path: Path) -> None:
    path.write_bytes(b"wei")


@pytest.mark.parametrize(
    ("harm", "message"), [(_rewrite, "damaged"), (_cut, "wrong size"), (Path.unlink, "missing")]
)
def test_what_was_damaged_since_is_not_already_made(made, harm, message):
    (made / "notes.txt").write_text("Mine too.")
    assert find_made(made, {"model": "a"})
    harm(made / "below" / "weights")
    with pytest.raises(DataError, match=rf"out/below/weights: {message}.*; delete "):
        find_made(made, {"model": "a"})


def test_edited_cards_and_files_that_were_not_fetched_are_no_damage(made):
    (made / "below" / "weights").rename(made / "weights")
    check_export(made)
    (made / "weights").rename(made / "below" / "weights")
    _rewrite(made / "below" / "weights")
    with pytest.raises(DataError, match=r"weights: damaged .*; restore it"):
        check_export(made)
    (made / "README.md").write_text("# Mine\n")
    check_export(made)


def test_files_without_hashes_cannot_be_vouched_for(made):
    card = made / "README.md"
    card.write_text(card.read_text().replace('"files"', '"leaves"'))
    with pytest.raises(DataError, match=r"README\.md: damaged"):
        find_made(made, {"model": "a"})


def test_what_was_made_from_something_else_is_refused(made):
    with pytest.raises(ConfigError, match="out: already exists, made from another"):
        find_made(made, {"model": "b"})


LONG = f'<!-- biphasic {{"a": {"1" * 5000}}} -->\n'
DEEP = f'<!-- biphasic {{"a": {"[" * 200_000}}} -->\n'


@pytest.mark.parametrize(
    "card",
    [None, "# Mine\n", "<!-- biphasic {oh} -->\n", LONG, DEEP],
    ids=["none", "other", "invalid", "long", "deep"],
)
def test_a_folder_without_an_export_note_is_refused(tmp_path, card):
    (tmp_path / "out").mkdir()
    if card:
        (tmp_path / "out/README.md").write_text(card)
    with pytest.raises(ConfigError, match="out: already exists; choose another"):
        find_made(tmp_path / "out")
