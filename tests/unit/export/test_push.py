"""Pushing to the hub: said first, sent only when asked, states never."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from biphasic.errors import BiphasicError, ConfigError, DataError
from biphasic.export import push as pushing
from biphasic.export.push import plan_push, push

CARD = "---\nlanguage: en\nlicense: mit\n---\n\n# Mine\n"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A folder that looks like an export."""
    folder = tmp_path / "mine"
    (folder / "1_Pooling").mkdir(parents=True)
    for name, size in {
        "config.json": 2,
        "model.safetensors": 100,
        "1_Pooling/config.json": 3,
    }.items():
        (folder / name).write_bytes(b"x" * size)
    (folder / "README.md").write_text(CARD)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "hidden").write_text("x")
    return folder


class FakeHub:
    """Remembers what it was asked."""

    def __init__(self, *, is_private: bool = True, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.private = is_private
        self._error = error

    def create_repo(self, repo_id: str, **options: Any) -> None:
        if self._error:
            raise self._error
        self.calls.append(("create_repo", {"repo_id": repo_id, **options}))

    def repo_info(self, repo_id: str) -> FakeHub:
        assert repo_id == "me/mine"
        return self

    def create_branch(self, repo_id: str, **options: Any) -> None:
        self.calls.append(("create_branch", {"repo_id": repo_id, **options}))

    def upload_folder(self, **options: Any) -> None:
        self.calls.append(("upload_folder", options))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what puts a fake hub in place."""

    def put(**options: Any) -> FakeHub:
        fake = FakeHub(**options)
        monkeypatch.setattr(pushing, "HfApi", lambda: fake)
        monkeypatch.setattr(pushing, "get_token", lambda: "hf_token")
        return fake

    return put


class TestPlan:
    def test_lists_files_but_hidden_ones(self, export):
        plan = plan_push(export, "me/mine")
        assert dict(plan.files) == {
            "1_Pooling/config.json": 3,
            "README.md": len(CARD),
            "config.json": 2,
            "model.safetensors": 100,
        }
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
    def test_warnings(self, card, words, export):
        (export / "README.md").unlink()
        if card is not None:
            (export / "README.md").write_text(card)
        [warning] = plan_push(export, "me/mine").notes
        assert words in warning

    @pytest.mark.parametrize("name", ["state.json", "optimizer.safetensors", "metrics.jsonl"])
    def test_states_stay(self, name, export):
        (export / name).write_text("{}")
        with pytest.raises(DataError, match="a training state, not an export"):
            plan_push(export, "me/mine")

    @pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
    def test_no_export(self, missing, export):
        (export / missing).unlink()
        with pytest.raises(DataError, match=r"mine: no (export|weights) here"):
            plan_push(export, "me/mine")

    def test_pickles_stay(self, export):
        (export / "pytorch_model.bin").write_text("x")
        with pytest.raises(DataError, match=r"pytorch_model.bin can run code"):
            plan_push(export, "me/mine")

    @pytest.mark.parametrize("name", ["mine", "me/mine/again", "me/my mine", "me/", "-x/y"])
    def test_names(self, name, export):
        with pytest.raises(ConfigError, match="must have the form OWNER/NAME"):
            plan_push(export, name)


class TestPush:
    def test_uploads_the_listed_files(self, export, hub):
        fake = hub()
        plan = plan_push(export, "me/mine", private=True, revision="v1")
        (export / "late.txt").write_text("appeared since")
        assert push(plan) == "https://huggingface.co/me/mine"
        names = [name for name, _ in fake.calls]
        assert names == ["create_repo", "create_branch", "upload_folder"]
        assert fake.calls[0][1] == {"repo_id": "me/mine", "private": True, "exist_ok": True}
        sent = fake.calls[2][1]
        assert (sent["repo_id"], sent["revision"]) == ("me/mine", "v1")
        assert sent["folder_path"] == export

        def goes(name: str) -> bool:
            return any(fnmatch.fnmatch(name, pattern) for pattern in sent["allow_patterns"])

        assert all(goes(name) for name, _ in plan.files)
        assert not goes("late.txt")
        assert not goes(".cache/hidden")

    def test_never_public_when_asked_to_be_private(self, export, hub):
        fake = hub(is_private=False)
        with pytest.raises(ConfigError, match="exists and is public"):
            push(plan_push(export, "me/mine", private=True))
        assert [name for name, _ in fake.calls] == ["create_repo"]

    def test_no_token(self, export, monkeypatch):
        monkeypatch.setattr(pushing, "get_token", lambda: None)
        with pytest.raises(ConfigError, match=r"no hub token; .*'hf auth login'"):
            push(plan_push(export, "me/mine"))

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (OfflineModeIsEnabled("offline"), "access is disabled"),
            (ConnectionError("no route\nto host"), "cannot be reached.*no route to host"),
            ("401", "refuses .401.; the token may lack write access"),
            ("500", "the hub refuses"),
        ],
    )
    def test_errors(self, error, words, export, hub):
        if isinstance(error, str):
            answer: Any = SimpleNamespace(status_code=int(error), headers={}, request=None)
            error = HfHubHTTPError("no", response=answer)
        hub(error=error)
        with pytest.raises(BiphasicError, match=words) as caught:
            push(plan_push(export, "me/mine"))
        assert "\n" not in str(caught.value)
