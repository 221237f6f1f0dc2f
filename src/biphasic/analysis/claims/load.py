"""Claims from files: the paper's, which come with the package, and people's own."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from biphasic.analysis.claims.language import Claim, ClaimsFile
from biphasic.config import load_config

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@lru_cache(maxsize=1)
def paper_claims() -> tuple[Claim, ...]:
    """Return the 25 claims of arXiv:2507.00994 and one of a blog post about it."""
    with resources.as_file(
        resources.files("biphasic.analysis").joinpath("reference", "claims.yaml")
    ) as path:
        return load_config(ClaimsFile, path).claims


def load_claims(path: Path) -> tuple[Claim, ...]:
    """Read a claims file.

    Raises:
        ConfigError: It is missing or something in it is wrong; the message names the claim, the
            place in it and the remedy.
    """
    return load_config(ClaimsFile, path).claims


def claims_schema() -> dict[str, Any]:
    """Return the JSON schema of claims files, for editors."""
    schema = ClaimsFile.model_json_schema()
    return {"$schema": _DIALECT, **schema, "title": "Claims file of biphasic"}
