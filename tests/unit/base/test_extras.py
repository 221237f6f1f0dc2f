"""What messages and pages tell people to install exists: no index has biphasic."""

import re
import tomllib
from pathlib import Path

import pytest

from biphasic.errors import install_command

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
FROM_INDEX = re.compile(r"install\s+[^`\n]*?(?<![\w./])'?biphasic(\[\w+\])?'?(?! @)(?=[\s`'\"]|$)")


@pytest.mark.parametrize("extra", ["cluster", "lora", "onnx", "wandb"])
def test_command_names_every_package_of_an_extra(extra):
    packages = " ".join(f"'{package}'" for package in PROJECT["optional-dependencies"][extra])
    assert install_command(extra) == f"python -m pip install {packages}"


@pytest.mark.parametrize("text", ["pip install 'biphasic[onnx]'", "pip install biphasic"])
def test_a_command_that_needs_an_index_is_noticed(text):
    assert FROM_INDEX.search(text)


def test_no_page_or_message_installs_biphasic_from_an_index():
    sources = [*PAGES, *(ROOT / "src").rglob("*.py")]
    wrong = [path.name for path in sources if FROM_INDEX.search(path.read_text(encoding="utf-8"))]
    assert wrong == []


def test_page_names_every_extra():
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert all(f"`{extra}`" in page for extra in PROJECT["optional-dependencies"])
    assert PROJECT.get("urls", {}) == {}, "docs/install.md can name the address of the project"
