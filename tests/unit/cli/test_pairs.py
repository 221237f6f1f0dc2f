"""`biphasic pairs`: what it prints, and its errors."""

from __future__ import annotations

import json


def test_build_and_inspect_print_counts_and_pairs(cli, tmp_path):
    table = tmp_path / "rows.jsonl"
    rows = [{"anchor": "what purrs", "positive": "a cat", "negatives": ["a dog"]}] * 2
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "pairs"
    code, built, _ = cli("pairs", "build", table, "--out", out, "--root", tmp_path, "--quiet")
    counts = "rows.jsonl: read 2, of tasks that judge 0, repeated 1, kept 1"
    assert code == 0
    assert built.splitlines()[:2] == ["1 pairs of 3 texts, with 1 negatives", counts]
    code, shown, _ = cli("pairs", "inspect", out)
    assert code == 0
    assert shown.endswith("  query: what purrs\n  positive: a cat\n  negative: a dog\n")


def test_without_a_source_or_with_a_bad_line_it_says_what_to_do(cli, tmp_path):
    out = tmp_path / "pairs"
    code, _, error = cli("pairs", "build", "--out", out, "--quiet")
    assert (code, error) == (
        2,
        "error: pairs build: give a table, --task or --documents; there is no source\n",
    )
    table = tmp_path / "rows.csv"
    table.write_text("query,positive\na,\n")
    code, _, error = cli("pairs", "build", table, "--out", out, "--quiet")
    assert code == 2
    assert error == f"error: {table}:2: 'positive' is empty; remove the pair or the text\n"
    code, _, error = cli("pairs", "inspect", out)
    assert code == 2
    assert "no finished pairs here; build them: 'biphasic pairs build'" in error
