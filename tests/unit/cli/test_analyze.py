"""`biphasic analyze`: what it prints of other people's results and of a study."""

import json

import pytest
from fake_study import ARMS, TASKS, FakeStudy
from made_layout import write_cell
from typer.testing import CliRunner

from biphasic.cli.main import app


def run(*arguments):
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)])


@pytest.fixture
def results(tmp_path):
    # Means 3 points apart; at 1e-5 everything is worse, also on validation.
    for model, shift in (("a", 0.03), ("b", 0.0)):
        tests = [0.60 + shift, 0.62 + shift, 0.64 + shift + (0.001 if shift else 0)]
        write_cell(tmp_path, f"results/{model}/sc/MNLI", {"1e-4": tests, "1e-5": [0.5, 0.5, 0.5]})
    return tmp_path


def test_cells_are_means_with_half_widths_in_percent_points(results):
    # b: 60, 62, 64: mean 62, error 2 / sqrt(3) = 1.1547; times 1.96 = 2.26, times 4.303 = 4.97.
    paper = run(results, "--convention", "paper")
    assert paper.exit_code == 0, paper.output
    assert "62.00 (2.26)" in paper.stdout
    assert "cover the true mean about 81 times in 100 with 3 seeds, not 95" in paper.stdout
    assert "pretrained once" in paper.stdout
    standard = run(results)
    assert "62.00 (4.97)" in standard.stdout
    assert "about 95 times in 100" in standard.stdout


def test_comparisons_say_how_sure_they_are(results):
    found = run(results, "--compare").stdout.replace("\N{NO-BREAK SPACE}", " ")
    assert "a is 3.03 points above b (95 % interval 2.89 to 3.18, 3 paired seeds" in found
    end = "provisional, as a learning rate is at the end of those tried"
    assert f"the difference is clear, {end}." in found
    assert "Pretraining seed: unknown (each model was pretrained once)." in found
    assert "a is clearly above 1 of 1 other models." in found


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


def test_what_is_left_out_is_named_beside_the_tables(results):
    (results / "results/a/sc/MNLI/lr1e-4_sd1/results.json").write_text("{")
    found = run(results)
    assert found.exit_code == 0
    assert "damaged: a/sc/MNLI/lr1e-4_sd1/results.json" in found.stderr
    assert "†" in found.stdout


def test_a_study_s_folder_is_read_too_by_its_own_convention(tmp_path):
    study = FakeStudy(steps=40, arms=ARMS[1:3], tasks=TASKS[:1], convention="paper")
    folder, store = study.write(tmp_path)
    store.rename(folder.parent / "store")
    found = run(folder)
    assert found.exit_code == 0, found.output
    assert "pydocs-sc" in found.stdout
    assert "convention 'paper'" in found.stdout
    assert json.loads(run(folder, "--json").stdout)["convention"] == "paper"


def test_hostile_names_are_text(tmp_path):
    names = (
        "[red]x[/red]",
        "<script>alert(1)<",
        "\\textbf{x} & $y$ %",
        "na\u202eme",
        "\x1b[31mred",
    )
    for name in names:
        write_cell(tmp_path, f"{name}/sc/{'d' * 200}", {"1e-4": [0.6, 0.8]})
    (tmp_path / names[4] / "sc" / ("d" * 200) / "lr1e-4_sd0" / "results.json").write_text("{")
    found = run(tmp_path, "--compare")
    assert found.exit_code == 0, found.output
    for name in names[:3]:
        assert name.replace(" %", "\N{NO-BREAK SPACE}%") in found.stdout
    assert "\x1b" not in found.output
    assert "d" * 200 in found.stdout


def test_intervals_over_pretraining_need_replicates(results):
    assert "pretrained once" in str(run(results, "--by-pretraining").exception)


def test_mistakes_are_reported(tmp_path):
    refused = str(run(tmp_path).exception)
    assert "no results; give the folder of a study" in refused
    assert "lm-evaluation-harness or mteb, or tables" in refused
    wrong = run(tmp_path, "--convention", "papre")
    assert wrong.exit_code == 2
    assert "'papre' is not one of 'standard', 'paper'" in wrong.stderr
