"""The wheel, installed where the checkout is not: everything it needs is inside.

Its dependencies are those of the running environment, whose own copy of biphasic it cannot reach.
"""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SOURCE = CHECKOUT / "src"
GIVEN = os.environ.get("BIPHASIC_WHEEL")  # folder: `make release` has one checked that it built


def run(*command: object, cwd: Path) -> str:
    """Run a command without the checkout on its path, and return what it prints."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name not in hidden},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(GIVEN).absolute() if GIVEN else tmp_path_factory.mktemp("dist")
    if not GIVEN:
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
        run(*pip, "--wheel-dir", folder, CHECKOUT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; of the running one it sees the packages alone."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(*pip, "--no-index", wheel, cwd=folder)
    # A line of such a file goes on the path as it is: editable installs found there stay unread.
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return folder


def test_every_file_is_inside(wheel):
    sources = (path.relative_to(SOURCE) for path in (SOURCE / "biphasic").rglob("*"))
    expected = {
        path.as_posix()
        for path in sources
        if (SOURCE / path).is_file() and "__pycache__" not in path.parts
    }
    assert {"biphasic/py.typed", "biphasic/analysis/templates/report.html.j2"} <= expected
    assert "biphasic/export/card.md.j2" in expected
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if name.startswith("biphasic/")} == expected
    rest = {name.split(".dist-info/")[1] for name in names - expected}
    assert rest == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(name).decode()
        (license,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        assert archive.read(license) == (CHECKOUT / "LICENSE").read_bytes()
    assert "\nLicense-Expression: Apache-2.0\n" in text
    assert "\nProvides-Extra: onnx\n" in text
    assert "\nRequires-Dist: onnxruntime>=1.22; extra == 'onnx'\n" in text
    assert (CHECKOUT / "README.md").read_text("utf-8").strip() in text


def test_it_is_the_wheel_that_runs(environment, tmp_path):
    where = "import biphasic; print(biphasic.__file__)"
    found = Path(run(environment / "bin" / "python", "-c", where, cwd=tmp_path).strip())
    assert found.is_relative_to(environment)


def test_version_and_help(environment, tmp_path):
    command = environment / "bin" / "biphasic"
    assert version("biphasic") in run(command, "--version", cwd=tmp_path)
    assert "export" in run(command, "--help", cwd=tmp_path)


def test_a_command_works(environment, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("rows of tokens and their weights\n" * 50, "utf-8")
    command = environment / "bin" / "biphasic"
    run(command, "tokenizer", "train", "text", "--vocab-size", "300", "--out", "new", cwd=tmp_path)
    assert (tmp_path / "new" / "tokenizer.json").is_file()


def test_the_report_finds_its_templates(environment, tmp_path):
    code = "import jinja2; print(*jinja2.PackageLoader('biphasic.analysis').list_templates())"
    assert "report.html.j2" in run(environment / "bin" / "python", "-c", code, cwd=tmp_path)
