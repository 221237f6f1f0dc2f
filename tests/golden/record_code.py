# ruff: noqa: T201 - a script
"""Vouch for the code that decides numbers: `make numerics`, which runs the golden numbers before.

Adds the hash of each part's code to the list of its version in `src/biphasic/numerics.json`.
"""

from typing import Any

from golden_code import PART_VERSIONS, code_now

from biphasic.files import read_json, write_json
from biphasic.numerics import KNOWN


def main() -> None:
    """Add what is missing."""
    known: dict[str, Any] = read_json(KNOWN) if KNOWN.is_file() else {}
    known["bytes"] = {}
    for part, version in PART_VERSIONS.items():
        raw, code = code_now(part)
        codes = known.setdefault(part, {}).setdefault(str(version), [])
        print(f"{part}, version {version}: {'as before' if code in codes else 'added'}")
        known["bytes"][raw] = code
        known[part][str(version)] = list(dict.fromkeys([*codes, code]))
    write_json(KNOWN, known)


if __name__ == "__main__":
    main()
