"""Plugins of installed packages: listed by their entry points, imported only when named."""

import sys

import pytest

from biphasic import plugins
from biphasic.config import parse_config
from biphasic.errors import ConfigError
from biphasic.plugins import installed_names, is_plugin, named_plugins
from biphasic.testing import check_named
from biphasic.training.lineage import Lineage
from biphasic.training.recipe import Recipe
from plugin_files import STRIDE
from tiny_study import GROUND

HELPER = "def first(): return 0\n"


def install(site, name="striding", version="1.2"):
    """Write a distribution with the objective `strides` into a folder of packages."""
    package, info = site / name, site / f"{name}-{version}.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text(HELPER)
    (package / "unused.py").write_text("")
    text = STRIDE.replace("import numpy", "from .helper import first\n\nimport numpy")
    (package / "objective.py").write_text(
        text.replace("[:: self.every]", "[first() :: self.every]")
    )
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = f"[biphasic.objectives]\nstrides = {name}.objective:Stride\n"
    (info / "entry_points.txt").write_text(points)
    return package


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package, in a process that has imported nothing of it."""
    package = install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield package
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] in {"striding", "second"}]:
        del sys.modules[name]
    plugins._points_on.cache_clear()


def recipe(objective="strides", **options):
    raw = {
        "model": "pico",
        "learning_rate": {"peak": 2e-3},
        "phases": [{"objective": objective, "steps": 3, **options}],
    }
    return parse_config(Recipe, raw, where="recipe")


def test_an_installed_plugin_is_loaded_by_name(package):
    assert installed_names("objectives") == ["strides"]
    assert installed_names("optimizers") == []
    assert "striding" not in sys.modules
    phase = recipe(every=3).phases[0]
    assert phase.plugin.origin == "striding 1.2"
    assert (phase.every, phase.short_name) == (3, "strides")
    assert phase.objective == f"strides@{phase.plugin.code}"
    assert named_plugins(recipe()) == {"strides": (f"striding 1.2, strides@{phase.plugin.code}",)}


def test_its_identity_is_its_name_and_version(package):
    first = Lineage(recipe(), GROUND).identities[-1]
    reference = recipe().phases[0].objective
    (package / "helper.py").write_text(HELPER.replace("0", "1"))
    forget()
    assert Lineage(recipe(), GROUND).identities[-1] == first
    metadata = package.parent / "striding-1.2.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))
    forget()
    assert Lineage(recipe(), GROUND).identities[-1] != first
    # What a job says, which a worker with another version of the package refuses.
    with pytest.raises(ConfigError, match=r"striding 1\.3: .* 'strides' differs"):
        recipe(reference)


def test_an_editable_installation_is_refused(package):
    info = package.parent / "striding-1.2.dist-info"
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    with pytest.raises(ConfigError, match=r"striding 1\.2: an editable installation"):
        recipe()


def test_two_packages_with_one_name_are_refused(package, tmp_path):
    install(tmp_path, "second", "0.1")
    with pytest.raises(ConfigError, match=r"'strides' is in .* and .*; uninstall"):
        recipe()


def test_packages_are_searched_once_for_all_names(package, monkeypatch):
    searched = []
    monkeypatch.setattr(plugins, "entry_points", lambda **group: searched.append(group) or ())
    assert not any(is_plugin("optimizers", name) for name in ("adamw", "muon", "strides"))
    assert len(searched) == 1


def test_one_that_is_named_like_ours_is_not_checked_in_its_place(tmp_path, monkeypatch):
    points = install(tmp_path).parent / "striding-1.2.dist-info/entry_points.txt"
    points.write_text(points.read_text().replace("strides =", "mlm ="))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^mlm: is one of ours"):
        [*check_named("mlm", {})]
