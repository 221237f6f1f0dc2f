"""Exports to a repository of the hub: first said, then, if asked, sent."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import huggingface_hub
import yaml
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # httpx's, or its successor's
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import validate_repo_id

from biphasic.errors import ConfigError, DataError
from biphasic.export.names import CARD, FILL_IN, STATE_FILES
from biphasic.files import expanded

_WEIGHTS = ("*.safetensors", "onnx/*.onnx", "*.onnx")
# What runs code when it is read has no place in an export of ours.
_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
_TO_FILL = ("license", "language")
_MESSAGE = "Add an encoder exported by biphasic"


@dataclass(frozen=True)
class PushPlan:
    """What would be sent where.

    Attributes:
        folder: What is sent.
        repository: Owner and name.
        revision: Branch; the main one when None.
        is_private: Whether only its owner is to see it.
        files: Paths within the folder and their bytes, by name.
        warnings: What should be put right before, one sentence each.
    """

    folder: Path
    repository: str
    revision: str | None
    is_private: bool
    files: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(size for _, size in self.files)


def plan_push(
    folder: Path | str, repository: str, *, private: bool = False, revision: str | None = None
) -> PushPlan:
    """Look at what would be sent, without a network.

    Raises:
        ConfigError: The repository's name is none.
        DataError: The folder is no export: a state of ours, or without a model.
    """
    folder = expanded(folder)
    _check_name(repository)
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: no export here (no config.json); 'biphasic export' makes one")
    if found := next((name for name in STATE_FILES if (folder / name).exists()), None):
        raise DataError(
            f"{folder}: a state of training, not an export ({found}); make one of it with "
            f"'biphasic export {folder} OUT'"
        )
    if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        raise DataError(f"{folder}: no weights here (no .safetensors, no .onnx)")
    files = tuple(_files(folder))
    if pickle := next((name for name, _ in files if Path(name).suffix in _PICKLES), None):
        raise DataError(f"{folder}: {pickle} can run code when it is read; remove it")
    return PushPlan(
        folder=folder,
        repository=repository,
        revision=revision,
        is_private=private,
        files=files,
        warnings=tuple(_warnings(folder)),
    )


def push(plan: PushPlan) -> str:
    """Send it, and return its address.

    Raises:
        ConfigError: No token is there, or a repository that exists is public and was asked to be
            private.
        DataError: The hub refuses, or cannot be reached.
    """
    if get_token() is None:
        raise ConfigError(
            f"push {plan.repository}: no token of the hub; log in with 'hf auth login', or set "
            "HF_TOKEN to one that may write"
        )
    api = HfApi()
    try:
        api.create_repo(plan.repository, private=plan.is_private or None, exist_ok=True)
        if plan.is_private and not api.repo_info(plan.repository).private:
            raise ConfigError(
                f"push {plan.repository}: this repository exists and is public; make it private "
                "in its settings, or leave --private away"
            )
        if plan.revision:
            api.create_branch(plan.repository, branch=plan.revision, exist_ok=True)
        api.upload_folder(
            repo_id=plan.repository,
            folder_path=plan.folder,
            revision=plan.revision,
            commit_message=_MESSAGE,
            # What was listed, and nothing that appeared since.
            allow_patterns=[glob.escape(name) for name, _ in plan.files],
        )
    except (OfflineModeIsEnabled, HTTPError, OSError, HFValidationError) as error:
        _explain(error, plan)
    return f"{huggingface_hub.constants.ENDPOINT}/{plan.repository}"


def _check_name(repository: str) -> None:
    try:
        validate_repo_id(repository)
    except HFValidationError:
        repository_is_name = False
    else:
        repository_is_name = repository.count("/") == 1
    if not repository_is_name:
        raise ConfigError(f"repository '{repository}': write it as OWNER/NAME")


def _files(folder: Path) -> list[tuple[str, int]]:
    """List what is sent: all but hidden files and those in hidden folders."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder) for path in paths]
    return [
        (name.as_posix(), path.stat().st_size)
        for path, name in zip(paths, names, strict=True)
        if not any(part.startswith(".") for part in name.parts)
    ]


def _warnings(folder: Path) -> list[str]:
    path = folder / CARD
    if not path.is_file():
        return [f"there is no {CARD}: nobody will know what this is"]
    text = path.read_text(encoding="utf-8", errors="replace")
    front = _front_matter(text)
    if front is None:
        return [f"{CARD} has no front matter that can be read: the hub will not list it"]
    found = [f"{CARD}: '{name}' is not filled in" for name in _TO_FILL if not front.get(name)]
    if "(To fill in.)" in text or "to fill in" in text.replace(FILL_IN, ""):
        found.append(f"{CARD}: some of it is marked to be filled in")
    return found


def _front_matter(text: str) -> dict[str, object] | None:
    """Return the YAML between the first two lines of dashes; None where there is none."""
    _, opening, rest = text.partition("---\n")
    block, closing, _ = rest.partition("\n---")
    if not opening or not closing or not text.startswith("---\n"):
        return None
    try:
        front = yaml.safe_load(block)
    except yaml.YAMLError:
        return None
    return front if isinstance(front, dict) else None


def _explain(error: Exception, plan: PushPlan) -> NoReturn:
    """Say in one line what an error of the hub means and what to do.

    Raises:
        DataError: Always.
    """
    where = f"push {plan.repository}"
    if isinstance(error, OfflineModeIsEnabled):
        raise DataError(f"{where}: the hub is switched off (HF_HUB_OFFLINE); unset it") from None
    told = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code if error.response is not None else None
        if status in {401, 403}:
            raise DataError(
                f"{where}: the hub refuses ({status}); the token may not write there: see 'hf auth "
                "whoami', and the token's rights in its settings"
            ) from None
        raise DataError(f"{where}: the hub refuses ({told})") from None
    raise DataError(
        f"{where}: the hub cannot be reached, or a file cannot be read ({told}); what was sent is "
        "not shown until all is there, so push again"
    ) from None
