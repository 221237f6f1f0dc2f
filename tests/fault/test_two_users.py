"""Two users of a group share a store, as its folder and their umask allow it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from biphasic import pretrain
from biphasic.data.building.build import build_corpus
from biphasic.data.building.config import CorpusConfig
from biphasic.errors import PERMIT, BiphasicError, os_error_text
from biphasic.files import read_json
from biphasic.locks import hold, refuse_while_cleaning
from other_user import as_other_user, needs_root
from warm import is_ready

pytestmark = [needs_root, pytest.mark.slow, pytest.mark.usefixtures("unprobed")]

ONE, OTHER, GROUP = 70_001, 70_002, 70_000


@pytest.fixture
def shared(monkeypatch) -> Iterator[Path]:
    """A folder whose files belong to a group, and which others of the group may change."""
    if not is_ready():
        pytest.skip("forks, as CUDA cannot")
    folder = Path(tempfile.mkdtemp(prefix="biphasic-shared-"))
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    home = Path(tempfile.mkdtemp(prefix="biphasic-home-"))
    home.chmod(0o777)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "/tmp")  # noqa: S108 - root's own is closed to others
    yield folder
    shutil.rmtree(folder)
    shutil.rmtree(home)


def act_as(user: int, act: Callable[[], Any], *, umask: int = 0o002) -> None:
    """Act as a member of the group, in a process of its own."""

    def with_umask() -> None:
        os.umask(umask)
        act()

    with as_other_user(with_umask, user=user, group=GROUP):
        pass


def closed(folder: Path) -> list[str]:
    """Return what the group cannot read, or folders that it cannot write to."""
    found = []
    for path in folder.rglob("*"):
        status = path.stat()
        wanted = stat.S_IRWXG if path.is_dir() else stat.S_IRGRP
        if status.st_mode & wanted != wanted or status.st_gid != GROUP:
            found.append(f"{path}: {stat.filemode(status.st_mode)}, group {status.st_gid}")
    return found


@pytest.fixture
def train(shared, make_recipe, tmp_path) -> Callable[..., Path]:
    """Build a corpus in the shared folder, and train in its store: `train("clm", "mlm")`."""
    text = shared / "text.jsonl"
    documents = [{"text": " ".join(f"row {n} has {word}" for word in range(9))} for n in range(300)]
    text.write_text("\n".join(map(json.dumps, documents)))
    config = CorpusConfig.model_validate(
        {
            "sources": [{"source": str(text)}],
            "vocab_size": 300,
            "heldout_fraction": 0.1,
            "deduplicate": False,
        }
    )

    def do(*objectives: str, folder: Path = shared) -> Path:
        build_corpus(config, folder / "corpus", num_workers=1, say=lambda _: None)
        recipe = make_recipe(*({"objective": objective, "steps": 2} for objective in objectives))
        corpus = {"folder": str(folder / "corpus")}
        return pretrain(recipe, corpus=corpus, root=folder / "runs")

    do("clm", folder=tmp_path)  # imports what root alone may read
    do("clm", "mlm", folder=tmp_path)
    return do


def test_one_user_goes_on_from_what_another_has_trained(shared, train):
    act_as(ONE, lambda: train("clm"))
    assert list(shared.rglob("model.safetensors"))
    assert not closed(shared)
    act_as(OTHER, lambda: train("clm", "mlm"))
    states = [read_json(path) for path in shared.glob("runs/store/states/*/state.json")]
    assert {state["steps"] if "steps" in state else state["step"] for state in states} == {2, 4}
    assert not closed(shared)


def test_missing_permission_to_look_for_a_cleaning_is_reported(shared):
    (shared / "store").mkdir()
    (shared / "store/.cleaning").write_text("{}")
    (shared / "store/.cleaning").chmod(0o600)

    def work() -> None:
        with pytest.raises(BiphasicError) as refused:
            refuse_while_cleaning(shared / "store")
        assert "unknown process" not in str(refused.value)
        assert PERMIT in str(refused.value)

    act_as(ONE, work)


def test_a_lock_of_a_killed_process_passes_to_another_user(shared):
    def die_with_it() -> None:
        if not os.fork():
            with hold(shared / "leases/work"):
                os._exit(1)
        os.wait()

    act_as(ONE, die_with_it)
    assert (shared / "leases/work").exists()

    def take_over() -> None:
        with hold(shared / "leases/work"):
            pass

    act_as(OTHER, take_over)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_missing_permission_to_read_a_state_is_reported(shared, train, name):
    act_as(ONE, lambda: train("clm"))
    for path in shared.glob(f"runs/store/states/*/{name}"):
        path.chmod(0o600)

    def read() -> None:
        with pytest.raises((BiphasicError, OSError)) as raised:
            train("clm", "mlm")
        error = raised.value
        text = os_error_text(error) if isinstance(error, OSError) else str(error)
        assert f"{name}: " in text, text
        assert text.endswith(PERMIT), text

    act_as(OTHER, read)
