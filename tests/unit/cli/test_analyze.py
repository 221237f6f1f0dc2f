"""`biphasic analyze`: what it prints of other people's results and of a study."""

import json

import pytest
from made_layout import write_cell
from typer.testing import CliRunner

from biphasic.cli.main import app
from biphasic.errors import ConfigError


def run(*arguments):
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)])


def test_one_rate_for_all_seeds_is_another_choice(tmp_path):
    write_cell(tmp_path, "m/sc/x", {"1e-4": [0.6, 0.7], "1e-5": [0.5, 0.5]})
    path = tmp_path / "m/sc/x/lr1e-5_sd1/results.json"
    raw = json.loads(path.read_text())
    raw["validation"]["score"] = 0.95
    path.write_text(json.dumps(raw))
    assert json.loads(run(tmp_path, "--json").stdout)["cells"][0]["mean"] == pytest.approx(55.0)
    one = json.loads(run(tmp_path, "--json", "--one-rate").stdout)["cells"][0]
    assert one["mean"] == pytest.approx(65.0)
    assert one["one_rate"] == 1e-4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["analyze", ".", "--compare", "--json"], "--compare: cannot be combined with --json"),
        (["claims", "--paper", "--markdown", "--json"], "give either --json or --markdown"),
    ],
)
def test_no_form_of_the_answer_is_ignored(tmp_path, monkeypatch, words, message):
    write_cell(tmp_path, "m/sc/x", {"1e-4": [0.6, 0.7]})
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
