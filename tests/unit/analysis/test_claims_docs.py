"""docs/claims.md: its example is run; verdicts of evidence/paper are those of the paper's table."""

from __future__ import annotations

import re
import sys

import pytest
from docs_page import DOCS, table_rows

from biphasic.analysis.claims import claims_report, paper_claims, restated
from biphasic.analysis.claims.rows import FACTORS
from biphasic.analysis.scores.source import paper_scores
from biphasic.cli.main import main

PAGE = DOCS / "claims.md"


def block(name: str, language: str) -> str:
    found = re.search(
        rf"<!-- {name} -->.*?```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    assert found is not None
    return found[1]


def test_the_example_prints_the_output_in_the_page(monkeypatch, capsys, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(block("example", "python"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["biphasic", "claims", "--paper", "--claims", "mine.py"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == block("output", "text")


def test_the_page_lists_the_verdicts_on_the_paper_s_table() -> None:
    paper = paper_scores()
    rows = [
        f"| {one.claim.id} | {one.claim.text} | {one.verdict} | {other.verdict} |"
        for one, other in zip(
            claims_report(paper), claims_report(restated(paper, "standard")), strict=True
        )
    ]
    assert table_rows("../evidence/paper/README.md", "verdicts") == rows


def test_the_page_has_the_readings_of_ambiguous_claims() -> None:
    rows = [f"| {claim.id} | {claim.reading} |" for claim in paper_claims() if claim.reading]
    assert table_rows("../evidence/paper/README.md", "readings") == rows
    assert {row.split()[1] for row in rows} == {"C05", "C09", "C12", "C17", "C26", "C27", "C28"}


def test_the_page_names_every_factor() -> None:
    page = PAGE.read_text("utf-8")
    factors = {*FACTORS, "finished"}
    assert {factor for factor in factors if f"`{factor}`" not in page} == set()
