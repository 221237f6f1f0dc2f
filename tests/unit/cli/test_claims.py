"""`biphasic claims` on the command line: the paper's table, studies, other people's results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_study import FakeStudy, write_json

from biphasic.analysis.page.render import render
from biphasic.analysis.records import load_records

COMMAND = ["claims"]


def write_study(folder: Path, **fields: Any) -> Path:
    """Write a study of one size whose records name the factors of each arm."""
    study, _ = FakeStudy(**fields).write(folder)
    path = study / "study.json"
    record = json.loads(path.read_text("utf-8"))
    parts = {"mlm": [("mlm", 400)], "clm": [("clm", 400)], "untrained": [],
             "clm-25-mlm-75": [("clm", 100), ("mlm", 300)],
             "clm-50-mlm-50": [("clm", 200), ("mlm", 200)]}  # fmt: skip
    for arm in record["arms"]:
        arm |= {"model": "nano", "parameters": 1_900_000, "phases": [
            {"objective": name, "steps": steps} | ({"mask_rate": 0.4} if name == "mlm" else {})
            for name, steps in parts[arm["name"]]
        ]}  # fmt: skip
    write_json(path, record)
    return study


def test_the_paper_s_table_as_json(run) -> None:
    code, out, _ = run("--paper", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["format"], found["convention"]) == ("biphasic.claims-report/2", "paper")
    assert found["counts"] == {"true": 9, "partly": 17, "false": 0, "undecided": 0, "no data": 3}
    assert found["changes_with_convention"] == {
        "C06": {"paper": "partly", "standard": "false"},
        "C23": {"paper": "partly", "standard": "true"},
    }
    claim = next(claim for claim in found["claims"] if claim["id"] == "C04")
    assert claim["verdict"] == "partly"
    assert claim["checks"][0]["comparisons"][2] == {
        "where": "IR, masking rate 0.4",
        "text": "+2.95 at 210M, +3.35 at 610M, +1.27 at 1B",
        "holds": False,
    }


def test_the_other_convention_changes_the_verdict(run) -> None:
    code, out, _ = run("--paper", "--convention", "standard", "--only", "C23")
    assert code == 0
    assert out.startswith("C23, true: ")
    assert "against: " not in out
    assert (
        "Intervals are 95 % with Student's t (convention 'standard'). Verdicts that depend on the "
        "convention: C23 is partly by 1.96 standard errors and true by Student's t."
    ) in out
    _, paper, _ = run("--paper", "--only", "C23")
    assert paper.startswith("C23, partly: ")
    assert "against: QA, 610M: 610M-clm-dec42k-mlm40-64k 66.62 (0.34)" in paper


def test_numbers_for_and_against_are_shown_and_counted(run) -> None:
    _, out, _ = run("--paper", "--only", "C01")
    assert out.count("\n  for: SC, 210M: 210M-mlm40-42k 84.89 (0.30), 210M-clm-42k 82.80") == 1
    assert "\n  for: and 7 more\n" in out  # 9 hold
    # Three do not, one of them with CLM significantly ahead, which the second check counts too.
    assert [line[:21] for line in out.splitlines() if line.startswith("  against")] == [
        "  against: TC, 210M: ", "  against: TC, 610M: ", "  against: TC, 1B: 1B"
    ]  # fmt: skip


def test_details_show_every_comparison(run) -> None:
    _, out, _ = run("--paper", "--only", "C18", "--details")
    assert out.count("- holds: ") == 30
    assert out.count("- fails: ") == 6


def test_markdown_has_a_section_per_claim_and_shows_texts_as_they_are(run, tmp_path) -> None:
    title = "a|b <script>alert(1)</script>\n# [x](http://y)"
    study = write_study(tmp_path, title=title)
    code, out, _ = run(study, "--markdown")
    assert code == 0
    assert "<script>" not in out
    assert "[x](" not in out
    assert len([line for line in out.splitlines() if line.startswith("## ")]) == 29


def test_a_study_answers_the_claims_it_has_data_for(run, tmp_path) -> None:
    study = write_study(tmp_path, seeds=tuple(range(10)))
    code, out, err = run(study)
    assert (code, err) == (0, "")
    heads = dict(re.findall(r"^(C18|C19|C20|C03|C22), ([\w ]+): ", out, re.MULTILINE))
    # The fake study's mixes are far above MLM on every task; it has one size and no continuation.
    assert heads == {
        "C18": "true", "C19": "true", "C20": "true", "C03": "no data", "C22": "no data"
    }  # fmt: skip
    assert "8 of 8 hold (all needed); size nano; masking rate 0.4; steps 400" in out
    assert "missing: no continued steps above 0" in out
    assert "First light: 29 claims, " in out
    assert "convention 'standard'" in out
    assert "convention 'paper'" in run(study, "--convention", "paper")[1]
    # What is known comes first.
    assert out.index("C20, true") < out.index("C03, no data")


def test_claims_are_open_where_the_report_cannot_tell(run, tmp_path) -> None:
    """Two seeds: the means differ, and no test says that they do."""
    study = write_study(tmp_path, seeds=(0, 1))
    code, out, _ = run(study, "--json")
    assert code == 0
    claims = json.loads(out)["claims"]
    assert {claim["verdict"] for claim in claims} == {"undecided", "no data"}
    answers = [c["holds"] for claim in claims for check in claim["checks"]
            for c in check["comparisons"]]  # fmt: skip
    assert answers
    assert set(answers) == {None}
    # The report uses the same words: "no data" only where there is no comparison.
    page = render(load_records(study), store="../store")
    shown = dict(
        re.findall(r'(?s)verdict-undecided">Undecided</b>.*?class="meta">(C18|C03)(,)', page)
    )
    assert shown == {"C18": ","}
    without = page[page.index("claims that this study has no data for") :]
    listed = set(re.findall(r"<li><b>(\w+)</b>", without))
    assert listed == {claim["id"] for claim in claims if claim["verdict"] == "no data"}
    assert "C03" in listed
    out = run(study, "--only", "C18")[1]
    assert "A star marks a clear difference" in out
    assert "do not overlap" not in out


def test_problems_of_records_go_to_standard_error(run, tmp_path) -> None:
    study = write_study(tmp_path, missing={("mlm", "pydocs-sc", 1e-4, 0)})
    code, out, err = run(study, "--only", "C18")
    assert code == 0
    assert err == "1 problem with these records; 'biphasic analyze' lists them\n"
    assert "Some runs are missing or diverged, so verdicts may change." in out


def test_other_people_s_results(run, tmp_path) -> None:
    scores = {"610m-clm-42k": 0.92, "610m-mlm40-42k": 0.90, "mystery": 0.5}
    for model, score in scores.items():
        for seed in range(3):
            luck = seed / 1000 if model != "610m-clm-42k" else seed**2 / 1000
            value = {"score": score + luck, "scores_i": []}
            place = tmp_path / "results" / model / "TC" / "conll" / f"lr1e-5_sd{seed}"
            write_json(place / "results.json", {"validation": value, "test": value})
    code, out, _ = run(tmp_path, "--only", "C16", "--only", "C05")
    assert code == 0
    assert out.startswith("C05, true: ")
    assert "1 of 1 hold (all needed); size 610M; masking rate 0.4; steps 42,000; task TC" in out
    assert "C16, no data: " in out


def test_custom_claims(run, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from biphasic.analysis.claims import claim\n"
        "@claim('m', 'T')\n"
        "def m(table):\n"
        "    yield table.varies('size')\n"
    )
    code, out, _ = run("--paper", "--claims", "mine.py")
    assert code == 0
    assert out.startswith("m, true: T\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a folder, or --paper"),
        (["somewhere", "--paper"], "give either a folder, or --paper"),
        (["--paper", "--only", "C1"], "--only C1: no such claim (did you mean 'C"),
        (["--paper", "--claims", "none.py"], "none.py: no such file"),
        (["nowhere"], "nowhere: no such folder"),
    ],
)
def test_wrong_input_ends_with_one_line_and_2(run, arguments, message) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_terminal_gets_tables(run, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run("--paper", "--only", "C04", "--only", "C03")
    assert code == 0
    assert "┃" in out
    assert "partly" in out
    assert "+3.35 at" in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert max(len(line) for line in plain.splitlines()) == 100
