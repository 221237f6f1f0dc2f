"""Settings of the documentation site; `make docs` builds it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

import biphasic

_LOG = getLogger(__name__)
_DOCS = Path(__file__).parent
_BUILD = _DOCS.parent / "build"
_BESIDE = ("benchmarks", "evidence")
_NAMES = "|".join(_BESIDE)
sys.path.insert(0, str(_DOCS.parent / "evidence"))
from records import write_reports  # noqa: E402 - not in the package

project = "biphasic"
author = "the biphasic authors"
release = biphasic.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
suppress_warnings = ["toc.not_included"]  # the page of decisions links to each
html_theme = "furo"
html_title = "biphasic"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = [str(_BUILD / "extra")]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def _source_hash() -> str:
    """Return a hash of the package's source; tutorials run again when it changes."""
    files = sorted(Path(biphasic.__file__).parent.rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


nb_execution_mode = "cache"
nb_execution_cache_path = str(_BUILD / "tutorials" / _source_hash())
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
# For the kernels of tutorials: our commands are found, and nothing is downloaded.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
os.environ |= {
    "BIPHASIC_EVIDENCE": str(_DOCS.parent / "evidence"),
    "COLUMNS": "100",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm misses ipywidgets
}


def _write_command_line() -> None:
    """Write the reference of all commands, as `--help` shows them."""
    command = [sys.executable, "-m", "typer", "biphasic.cli.main", "utils", "docs"]
    done = subprocess.run(  # noqa: S603 - our own command, no shell
        [*command, "--name", "biphasic", "--title", "Command line"],
        check=True,
        capture_output=True,
        text=True,
    )
    (_DOCS / "reference" / "cli.md").write_text(_spelled_out(done.stdout), encoding="utf-8")


def _spelled_out(page: str) -> str:
    """Link lists of commands to their sections, and complete the summaries that typer shortens."""
    sections = dict(re.findall(r"^#+ `(biphasic .+)`\n\n((?:.+\n)+)", page, flags=re.MULTILINE))
    lines, parent = [], "biphasic"
    for line in page.splitlines():
        if heading := re.fullmatch(r"#+ `(biphasic .+)`", line):
            parent = heading[1]
        command = re.fullmatch(r"\* `([\w-]+)`: .*", line)
        name = f"{parent} {command[1]}" if command else ""
        if command and name in sections:
            summary = " ".join(sections[name].split())
            line = f"* [`{command[1]}`](#{name.replace(' ', '-')}): {summary}"  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines) + "\n"


def _write_reports() -> None:
    """Write the reports of shipped studies, with the records that they link to."""
    extra = Path(html_extra_path[0])
    shutil.rmtree(extra, ignore_errors=True)
    write_reports(sorted((_DOCS / "evidence").glob("*/records.tar.xz")), extra / "reports")


def _copy_folders_beside() -> None:
    """Show the folders of studies and benchmarks, which stand beside this one, below it."""
    # Not by links, which MyST would resolve.
    for name in _BESIDE:
        shutil.rmtree(_DOCS / name, ignore_errors=True)
        shutil.copytree(_DOCS.parent / name, _DOCS / name, copy_function=os.link)


def _link_below(_: Sphinx, page: str, source: list[str]) -> None:
    """Let links to the folders beside these lead to their pages on the site, and back."""
    is_beside = page.partition("/")[0] in _BESIDE
    up = "../" * page.count("/")
    here, there = (rf"{up}docs/", up) if is_beside else (rf"{up}\.\./({_NAMES})/", rf"{up}\1/")
    source[0] = re.sub(rf"\]\({here}", rf"]({there}", source[0])
    if is_beside:  # study files, which the copies are one folder further from
        source[0] = source[0].replace(f"]({up}studies/", f"]({up}../studies/")


def _join_streams(_: Sphinx, tree: nodes.document) -> None:
    """Show what a cell prints as one block; it arrives in pieces."""
    for output in tree.findall(
        lambda node: "cell_output" in getattr(node, "attributes", {}).get("classes", ())
    ):
        block = None
        for piece in list(output.children):
            classes = piece.get("classes", ())
            if "stream" not in classes and "stderr" not in classes:
                block = None
            elif block is None or block["classes"] != classes:
                block = piece
            else:
                block.rawsource += piece.rawsource
                block.children[:] = [nodes.Text(block.rawsource)]
                output.remove(piece)


def _show_magics_as_files(_: Sphinx, tree: nodes.document) -> None:
    """Show `%%bash` cells as shell commands and `%%writefile` cells as files, ready to copy."""
    for block in tree.findall(nodes.literal_block):
        magic, _, rest = block.astext().partition("\n")
        if magic.startswith("%%bash"):
            language = "bash"
        elif magic.startswith("%%writefile "):
            language = "python" if magic.endswith(".py") else "yaml"
            name = nodes.literal("", magic.split()[1])
            block.parent.insert(0, nodes.paragraph("", "", name, classes=["file-name"]))
            *_, output = block.parent.parent.children
            block.parent.parent.remove(output)  # "Writing ..."
        else:
            continue
        block["language"] = language
        block.children[:] = [nodes.Text(rest)]
        block.rawsource = rest


def _check_links(app: Sphinx, error: Exception | None) -> None:
    """Refuse links to files and anchors that the built site does not have."""
    if error is not None or app.builder.format != "html":
        return
    pages = {
        page.resolve(): BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
        for page in Path(app.outdir).rglob("*.html")
    }
    anchors = {
        page: {tag[key] for key in ("id", "name") for tag in tree.find_all(attrs={key: True})}
        for page, tree in pages.items()
    }
    for page, tree in pages.items():
        for tag in tree.find_all(["a", "img"]):
            url = urlsplit(tag.get("href") or tag.get("src") or "")
            if url.scheme or url.netloc:
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            known = anchors.get(target)
            if not target.exists() or (known is not None and url.fragment not in {"", *known}):
                _LOG.warning("%s: broken link %s", page.relative_to(app.outdir), url.geturl())


def setup(app: Sphinx) -> None:
    """Connect to the build."""
    app.connect("build-finished", _check_links)
    app.connect("source-read", _link_below)
    app.connect("doctree-read", _show_magics_as_files)
    app.connect("doctree-read", _join_streams)


_copy_folders_beside()
_write_command_line()
_write_reports()
