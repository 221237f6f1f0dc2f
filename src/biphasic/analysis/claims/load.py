"""Claims from files: the paper's, which come with the package, and people's own."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from biphasic.analysis.claims.language import Claim, ClaimsFile
from biphasic.config import Config, load_config, parse_config

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Outline(Config):
    """A claims file whose claims are not read yet, so that errors can name them."""

    format: str
    claims: list[dict[str, Any]]


@lru_cache(maxsize=1)
def paper_claims() -> tuple[Claim, ...]:
    """Return the 25 claims of arXiv:2507.00994 and one of a blog post about it."""
    package = resources.files("biphasic.analysis")
    with resources.as_file(package.joinpath("reference", "claims.yaml")) as path:
        return load_claims(path)


def load_claims(path: Path) -> tuple[Claim, ...]:
    """Read a claims file.

    Raises:
        ConfigError: It is missing or something in it is wrong; the message names the claim, the
            place in it and the remedy.
    """
    outline = load_config(_Outline, path)
    claims = [
        parse_config(Claim, raw, where=f"{path}: claim '{raw.get('id', number)}'")
        for number, raw in enumerate(outline.claims, start=1)
    ]
    whole = {"format": outline.format, "claims": claims}
    return parse_config(ClaimsFile, whole, where=str(path)).claims


def claims_schema() -> dict[str, Any]:
    """Return the JSON schema of claims files, for editors."""
    schema = _without_nulls(ClaimsFile.model_json_schema())
    return {"$schema": _DIALECT, **schema, "title": "Claims file of biphasic"}


def _without_nulls(schema: Any) -> Any:
    """Leave out what is only there because fields may be left out, and generated titles."""
    if isinstance(schema, list):
        return [_without_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        name: _without_nulls(part)
        for name, part in schema.items()
        if name != "default" and not (name == "title" and isinstance(part, str))
    }
    branches = [branch for branch in found.get("anyOf", []) if branch != {"type": "null"}]
    if len(branches) == 1:
        del found["anyOf"]
        return {**branches[0], **found}
    return {**found, "anyOf": branches} if branches else found
