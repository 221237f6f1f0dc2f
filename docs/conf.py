"""Settings of the documentation site; `make docs` builds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import biphasic

_DOCS = Path(__file__).parent
project = "biphasic"
author = "the biphasic authors"
release = biphasic.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["replication/*.yaml"]
suppress_warnings = ["toc.not_included"]  # the page of decisions links to each
html_theme = "furo"
html_title = "biphasic"
html_show_copyright = False
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def _write_command_line() -> None:
    """Write the reference of all commands, as `--help` shows them."""
    command = [sys.executable, "-m", "typer", "biphasic.cli.main", "utils", "docs"]
    done = subprocess.run(  # noqa: S603 - our own command, no shell
        [*command, "--name", "biphasic", "--title", "Command line"],
        check=True,
        capture_output=True,
        text=True,
    )
    (_DOCS / "reference" / "cli.md").write_text(done.stdout, encoding="utf-8")


_write_command_line()
