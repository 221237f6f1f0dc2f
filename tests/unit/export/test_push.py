"""Pushing to the hub: said first, sent only when asked, states never."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from biphasic.errors import ConfigError, DataError
from biphasic.export.push import plan_push, push
from refusals import refusals, refused

CARD = "---\nlanguage: en\nlicense: mit\n---\n\n# Mine\n"
FILES = {"config.json": 2, "model.safetensors": 100, "1_Pooling/config.json": 3}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A folder that looks like an export."""
    folder = tmp_path / "mine"
    for name in ("1_Pooling", ".cache"):
        (folder / name).mkdir(parents=True)
    for name, size in FILES.items():
        (folder / name).write_bytes(b"x" * size)
    (folder / "README.md").write_text(CARD)
    (folder / ".cache" / "hidden").write_text("x")
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the hub is asked, in order; it has one private repository, and this machine a token."""
    asked: dict[str, Any] = {}
    for name in ("create_repo", "create_branch", "upload_folder"):

        def remember(_: HfApi, repo_id: str, name: str = name, **options: Any) -> None:
            asked[name] = {"repo_id": repo_id, **options}

        monkeypatch.setattr(HfApi, name, remember)
    monkeypatch.setattr(HfApi, "repo_info", lambda *_: SimpleNamespace(private=True))
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    return asked


def test_a_plan_lists_files_but_hidden_ones(export):
    plan = plan_push(export, "me/mine")
    assert dict(plan.files) == {**FILES, "README.md": len(CARD)}
    assert plan.notes == ()


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (None, "no README.md"),
        ("# Mine\n", "no readable front matter"),
        ("---\n: [\n---\n", "no readable front matter"),
        ("---\nlanguage: en\nlicense:  # to fill in\n---\n", "'license' is not filled in"),
        ("---\nlicense: mit\n---\n", "'language' is not filled in"),
        (CARD + "Data: (To fill in.)", "some parts are still to be filled in"),
    ],
)
def test_what_is_to_mend_is_noted(card, words, export):
    (export / "README.md").unlink()
    if card is not None:
        (export / "README.md").write_text(card)
    [warning] = plan_push(export, "me/mine").notes
    assert words in warning


@refusals(
    {
        **{
            f"a state's {name}": ({"add": name}, DataError, "a training state, not an export")
            for name in ("state.json", "optimizer.safetensors", "metrics.jsonl")
        },
        "no export": ({"lose": "config.json"}, DataError, "no export here (no config.json or "),
        "no weights": ({"lose": "model.safetensors"}, DataError, "mine: no weights here"),
        "pickle": ({"add": "pytorch_model.bin"}, DataError, "pytorch_model.bin can run code"),
        "pickle in capitals": ({"add": "MODEL.PT"}, DataError, "MODEL.PT can run code"),
        **{
            f"the name {name}": ({"name": name}, ConfigError, "must have the form OWNER/NAME")
            for name in ("mine", "me/mine/again", "me/my mine", "me/", "-x/y")
        },
    }
)
def test_what_cannot_be_pushed_is_refused(given, error, parts, export):
    if "add" in given:
        (export / given["add"]).write_text("{}")
    if "lose" in given:
        (export / given["lose"]).unlink()
    refused(error, parts, plan_push, export, given.get("name", "me/mine"))


def test_the_listed_files_are_uploaded(export, calls):
    plan = plan_push(export, "me/mine", private=True, revision="v1")
    (export / "late.txt").write_text("appeared since")
    assert push(plan) == "https://huggingface.co/me/mine"
    assert [*calls] == ["create_repo", "create_branch", "upload_folder"]
    assert calls["create_repo"] == {"repo_id": "me/mine", "private": True, "exist_ok": True}
    assert calls["create_branch"] == {"repo_id": "me/mine", "branch": "v1", "exist_ok": True}
    sent = calls["upload_folder"]
    assert (sent["repo_id"], sent["revision"]) == ("me/mine", "v1")
    assert sent["folder_path"] == export
    names = [*dict(plan.files), "late.txt", ".cache/hidden"]
    assert dict(plan.files).keys() == {
        name
        for name in names
        if any(fnmatch.fnmatch(name, pattern) for pattern in sent["allow_patterns"])
    }


def test_a_public_repository_is_not_pushed_to_as_a_private_one(export, calls, monkeypatch):
    monkeypatch.setattr(HfApi, "repo_info", lambda *_: SimpleNamespace(private=False))
    with pytest.raises(ConfigError, match="exists and is public"):
        push(plan_push(export, "me/mine", private=True))
    assert [*calls] == ["create_repo"]


def test_without_a_token_nothing_is_asked(export, calls, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "nowhere")
    refused(ConfigError, ["no hub token; ", "'hf auth login'"], push, plan_push(export, "me/mine"))
    assert not calls


def answer(status: int) -> HfHubHTTPError:
    response: Any = SimpleNamespace(status_code=status, headers={}, request=None)
    return HfHubHTTPError("no", response=response)


@refusals(
    {
        "offline": (OfflineModeIsEnabled("offline"), DataError, "access is disabled"),
        "network": (
            ConnectionError("no route\nto host"), DataError, "cannot be reached", "no route to host"
        ),
        "token": (answer(401), DataError, "refuses (401); the token may lack write access"),
        "hub": (answer(500), DataError, "the hub refuses"),
    }
)  # fmt: skip
def test_an_error_of_the_hub_is_explained(given, error, parts, export, calls, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise given

    monkeypatch.setattr(HfApi, "create_repo", fail)
    refused(error, parts, push, plan_push(export, "me/mine"))
    assert not calls
