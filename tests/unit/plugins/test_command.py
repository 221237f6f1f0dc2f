"""`biphasic plugins` and `biphasic plugin check`."""

from biphasic.plugins import keep_files
from biphasic.study.settings.load import read_recipe
from plugin_files import write_stride


def test_a_file_is_checked_and_a_broken_rule_named(cli, tmp_path):
    path = write_stride(tmp_path)
    assert cli("plugin", "check", path)[:2] == (0, f"{_kept(path)}\n")
    assert cli("plugin", "check", f"{path}:Stride", "--set", "every=7")[0] == 0
    write_stride(tmp_path, ("frozenset({False})", "frozenset({True})"))
    code, _, error = cli("plugin", "check", path)
    assert code == 2
    assert error.startswith("error: stride: breaks the rule 'directions': ")


def test_what_cannot_be_checked_is_named(cli, tmp_path):
    path = write_stride(tmp_path)
    for named, message in (
        (f"{path}:Other", "no class of the base ObjectiveConfig or OptimizerConfig"),
        (tmp_path / "none.py", "no such file"),
        ("strides", "no class of the base"),
    ):
        code, _, error = cli("plugin", "check", named)
        assert (code, message in error) == (2, True), error
    code, _, error = cli("plugin", "check", path, "--set", "evry=3")
    assert (code, "unknown key 'settings.evry' (did you mean 'every'?)" in error) == (2, True)


def test_files_in_the_store_are_listed(cli, tmp_path):
    root = tmp_path / "root"
    assert cli("plugins", "--root", root)[1] == "no plugin is installed, and the store has none\n"
    write_stride(tmp_path)
    (tmp_path / "recipe.yaml").write_text(
        "{model: pico, learning_rate: {peak: 1.0e-3}, "
        "phases: [{objective: './stride.py:Stride', steps: 1}]}"
    )
    recipe = read_recipe(tmp_path / "recipe.yaml", ())
    keep_files(root / "store", recipe)
    (_, out, _), code = cli("plugins", "--root", root), recipe.phases[0].plugin.code
    assert out.split() == ["file", "stride.py", code[:12]]


def _kept(path):
    from biphasic.objectives.objective import ObjectiveConfig
    from biphasic.plugins import find_plugin, shown
    from biphasic.testing import ObjectiveRules

    reference = find_plugin("objectives", f"{path}:Stride", ObjectiveConfig).reference
    return f"{shown(reference)}: keeps all {len(ObjectiveRules.names())} rules of objectives"
