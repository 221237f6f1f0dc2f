"""Output folders appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from biphasic.errors import ConfigError
from biphasic.export.output import new_folder


def test_appears_at_the_end(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "out") as partial:
        (partial / "file").write_text("x")
        assert not (tmp_path / "a" / "out").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]
    assert (tmp_path / "a" / "out" / "file").read_text() == "x"


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "out") as partial:
            (partial / "file").write_text("x")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_never_replaces(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("precious")
    else:
        out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="already there"), new_folder(out):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_appeared_meanwhile_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def race() -> None:
        with new_folder(out):
            out.mkdir()

    with pytest.raises(ConfigError, match="already there"):
        race()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
