"""`biphasic claims` on the command line: the paper's table, studies, other people's results."""

from __future__ import annotations

import json
import re

from fake_study import write_study_with_factors

from biphasic.analysis.page.render import render
from biphasic.analysis.records import load_records

COMMAND = ["claims"]


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


def test_markdown_has_a_section_per_claim_and_shows_texts_as_they_are(run, tmp_path) -> None:
    title = "a|b <script>alert(1)</script>\n# [x](http://y)"
    study = write_study_with_factors(tmp_path, title=title)
    code, out, _ = run(study, "--markdown")
    assert code == 0
    assert "<script>" not in out
    assert "[x](" not in out
    assert len([line for line in out.splitlines() if line.startswith("## ")]) == 29


def test_claims_are_open_where_the_report_cannot_tell(run, tmp_path) -> None:
    """Two seeds: the means differ, and no test says that they do."""
    study = write_study_with_factors(tmp_path, seeds=(0, 1))
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
    [without] = re.findall(r"Without data here: (.*?) \(", page)
    listed = set(without.split(", "))
    assert listed == {claim["id"] for claim in claims if claim["verdict"] == "no data"}
    assert "C03" in listed
    out = run(study, "--only", "C18")[1]
    assert "A star marks a clear difference" in out
    assert "do not overlap" not in out
