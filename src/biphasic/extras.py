"""How to install optional packages, by their own names: no index has `biphasic` itself."""

from __future__ import annotations

import shlex
from importlib.metadata import requires


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra."""
    split = [text.partition(";") for text in requires("biphasic") or []]
    packages = [name.strip() for name, _, marker in split if f"'{extra}'" in marker]
    return f"python -m pip install {shlex.join(packages)}"
