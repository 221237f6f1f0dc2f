"""The curves of a tuning, as rows and as a figure."""

from __future__ import annotations

import csv
import io
import re

from biphasic.analysis.figures.tuning import (
    FORMAT,
    CurveRecord,
    TrialRecord,
    TuneRecord,
    curve_csv,
    draw_curves,
)


def curve(name: str, measure: str, losses: dict[float, float | None], choice: float | None):
    return CurveRecord(
        name=name,
        measure=measure,
        arms=("a",),
        trials=tuple(
            TrialRecord(
                arm=f"{name}-{peak:g}",
                peak=peak,
                loss=loss,
                state="f" * 64,
                lost="" if loss is not None else "the loss was not finite at step 3",
            )
            for peak, loss in losses.items()
        ),
        choice=choice,
        equals=(),
    )


RECORD = TuneRecord(
    format=FORMAT,
    study="mine",
    share=0.1,
    budget=800,
    steps=80,
    warmup_steps=4,
    decay_steps=8,
    curves=(
        curve("nano-clm", "CLM", {1e-3: 6.1, 2e-3: 5.9000000001, 4e-3: None}, 2e-3),
        curve("nano-mlm40", "MLM at 40 %", {1e-3: 6.5, 2e-3: 6.4, 4e-3: 31.0}, 2e-3),
        curve("micro-clm", "CLM", {1e-3: None, 2e-3: None}, None),
    ),
)


def test_rows_have_every_trial_and_round_trip_exactly():
    rows = list(csv.DictReader(io.StringIO(curve_csv(RECORD))))
    assert [(row["name"], float(row["peak"]), row["loss"]) for row in rows[:3]] == [
        ("nano-clm", 1e-3, "6.1"),
        ("nano-clm", 2e-3, "5.9000000001"),
        ("nano-clm", 4e-3, ""),
    ]
    assert len(rows) == 8
    assert [row["name"] for row in rows if row["is_chosen"]] == ["nano-clm", "nano-mlm40"]
    assert rows[2]["lost"] == "the loss was not finite at step 3"


def texts(svg: str) -> str:
    """Return what an SVG whose text is drawn says; matplotlib keeps it in comments."""
    return " ".join(re.findall(r"<!-- (.*?) -->", svg)).replace("\xa0", " ")


def test_the_figure_shows_choices_diverged_trials_and_rates_beyond_the_edge():
    drawn = draw_curves(RECORD)
    assert sorted(drawn) == ["png", "svg"]
    assert drawn["png"].startswith(b"\x89PNG")
    words = texts(drawn["svg"].decode())
    assert "mine: loss after 80 steps" in words
    assert "Held-out CLM" in words
    assert "Held-out MLM at 40 %" in words
    assert "nano-clm: 0.002" in words
    assert "micro-clm: none" in words
    assert "31, higher" in words
    assert {"chosen", "diverged"} < {*words.split()}


def test_the_same_tuning_gives_the_same_bytes():
    assert draw_curves(RECORD) == draw_curves(RECORD)


def test_one_curve_of_one_rate_and_no_loss_at_all_can_be_drawn():
    alone = RECORD.model_copy(update={"curves": (curve("a", "CLM", {1e-3: 4.0}, 1e-3),)})
    lost = RECORD.model_copy(update={"curves": (curve("a", "CLM", {1e-3: None}, None),)})
    assert "a: 0.001" in texts(draw_curves(alone)["svg"].decode())
    assert "a: none" in texts(draw_curves(lost)["svg"].decode())
