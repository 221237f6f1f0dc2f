"""Uploads exports to a hub repository: first a plan, then the upload if requested."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import yaml
from huggingface_hub import HfApi, get_token, metadata_load
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # httpx's, or its successor's
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import validate_repo_id

from biphasic.errors import ConfigError, DataError, one_line
from biphasic.export.output import FILL_IN
from biphasic.files import ADAPTER, ADAPTER_FILES, BASE, expanded
from biphasic.shown import Shown
from biphasic.store import CARD

_WEIGHTS = ("*.safetensors", f"{BASE}/*.safetensors", "onnx/*.onnx", "*.onnx")
_CONFIGURATIONS = ("config.json", f"{ADAPTER}/{ADAPTER_FILES[0]}")
# Files that only training states have; exports omit them.
_STATE_FILES = ("state.json", "optimizer.safetensors", "metrics.jsonl")
# Formats that run code when loaded do not belong in an export.
_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
_TO_FILL = ("license", "language")
_MESSAGE = "Add an encoder exported by biphasic"


@dataclass(frozen=True, repr=False)
class Upload(Shown):
    """Files and target of an upload, which `push` returns.

    Attributes:
        repository: Owner and name.
        revision: Branch; the main one if None.
        files: Path within the folder, and size in bytes, of each file.
        notes: What to mend before the upload.
        address: Where the model is; None if the files were only listed.
    """

    folder: Path
    repository: str
    revision: str | None
    is_private: bool
    files: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    address: str | None = None

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each file."""
        return [{"file": name, "bytes": num_bytes} for name, num_bytes in self.files]

    def lines(self) -> Iterator[str]:
        """Return the files, their size and the place."""
        width = max(len(name) for name, _ in self.files)
        for name, num_bytes in self.files:
            yield f"  {name:<{width}}  {num_bytes:>15,} bytes"
        branch = f"branch {self.revision}" if self.revision else "main branch"
        private = ", private if new" if self.is_private else ""
        total = sum(num_bytes for _, num_bytes in self.files)
        yield f"{len(self.files)} files, {total:,} bytes, to {self.repository}, {branch}{private}"


def plan_push(
    folder: Path | str, repository: str, *, private: bool = False, revision: str | None = None
) -> Upload:
    """Plan an upload, without network access."""
    folder = expanded(folder)
    is_name = False
    with suppress(HFValidationError):
        validate_repo_id(repository)
        is_name = repository.count("/") == 1
    if not is_name:
        raise ConfigError(f"repository '{repository}' must have the form OWNER/NAME")
    if not any((folder / path).is_file() for path in _CONFIGURATIONS):
        missing = " or ".join(_CONFIGURATIONS)
        raise DataError(f"{folder}: no export here (no {missing}); 'biphasic export' makes one")
    if state_file := next((name for name in _STATE_FILES if (folder / name).exists()), None):
        raise DataError(
            f"{folder}: a training state, not an export ({state_file}); export it with "
            f"'biphasic export {folder} OUT'"
        )
    if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        raise DataError(f"{folder}: no weights here (no .safetensors, no .onnx)")
    files = tuple(_files(folder))
    if pickle := next((n for n, _ in files if Path(n).suffix.lower() in _PICKLES), None):
        raise DataError(f"{folder}: {pickle} can run code when loaded; remove it")
    return Upload(
        folder=folder,
        repository=repository,
        revision=revision,
        is_private=private,
        files=files,
        notes=tuple(_warnings(folder)),
    )


def push(plan: Upload) -> str:
    """Upload the files, and return the address."""
    if get_token() is None:
        raise ConfigError(
            f"push {plan.repository}: no hub token; log in with 'hf auth login', or set "
            "HF_TOKEN to one with write access"
        )
    api = HfApi()
    try:
        # None: as the account creates new ones by default.
        api.create_repo(plan.repository, private=plan.is_private or None, exist_ok=True)
        if plan.is_private and not api.repo_info(plan.repository).private:
            raise ConfigError(
                f"push {plan.repository}: this repository exists and is public; make it private "
                "in its settings, or omit --private"
            )
        if plan.revision:
            api.create_branch(plan.repository, branch=plan.revision, exist_ok=True)
        api.upload_folder(
            repo_id=plan.repository,
            folder_path=plan.folder,
            revision=plan.revision,
            commit_message=_MESSAGE,
            # Only the planned files, not those created since.
            allow_patterns=[glob.escape(name) for name, _ in plan.files],
        )
    except (OfflineModeIsEnabled, HTTPError, OSError, HFValidationError) as error:
        _explain(error, plan)
    return f"{huggingface_hub.constants.ENDPOINT}/{plan.repository}"


def _files(folder: Path) -> list[tuple[str, int]]:
    """List the files to upload: all except hidden files and hidden folders."""
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
        return [f"no {CARD}: users will not know what this is"]
    front = None
    with suppress(yaml.YAMLError, ValueError):
        front = metadata_load(path)
    if front is None:
        return [f"{CARD} has no readable front matter: the hub will not list it"]
    text = path.read_text(encoding="utf-8", errors="replace")
    warnings = [f"{CARD}: '{name}' is not filled in" for name in _TO_FILL if not front.get(name)]
    if "(To fill in.)" in text or "to fill in" in text.replace(FILL_IN, ""):
        warnings.append(f"{CARD}: some parts are still to be filled in")
    return warnings


def _explain(error: Exception, plan: Upload) -> NoReturn:
    """Raise a one-line error that explains an error of the hub."""
    where = f"push {plan.repository}"
    if isinstance(error, OfflineModeIsEnabled):
        raise DataError(f"{where}: hub access is disabled (HF_HUB_OFFLINE); unset it") from None
    reason = one_line(error)
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code if error.response is not None else None
        if status in {401, 403}:
            raise DataError(
                f"{where}: the hub refuses ({status}); the token may lack write access: see "
                "'hf auth whoami', and the token's permissions in its settings"
            ) from None
        raise DataError(f"{where}: the hub refuses ({reason})") from None
    raise DataError(
        f"{where}: the hub cannot be reached, or a file cannot be read ({reason}); an incomplete "
        "upload is not visible, so push again"
    ) from None
