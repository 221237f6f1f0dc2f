"""kill -9 at bad moments, again and again: the results are those of the uninterrupted run."""

import random

import pytest

from mini_study import Cli, appears, command, kill_when, scores, write_small_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm", "undrawn", "unprobed")]

# What appears on disk at a moment worth dying in, and how many of it; in the order in which a run
# meets them, so that each kill comes while there is still something to do.
MOMENTS = {
    "between tokenizer and corpus": ("store/data/*/tokenizer/manifest.json", 1),
    "while a checkpoint is written": ("store/progress/*/.partial-step-*", 1),
    "while a state is written": ("store/states/.partial-*", 1),
    "right after a phase switch": ("store/progress/*-from-0/step-00000006/manifest.json", 1),
    "in fine-tuning": ("store/finetunes/*/result.json", 9),  # 4 are of baselines
    "while a result is written": ("store/finetunes/.partial-*", 1),
    "while the report is written": ("mini/report/results.csv", 1),
}


def test_interrupted_equals_uninterrupted(finished, tmp_path, cli: Cli):
    root, study = tmp_path / "root", write_small_study(tmp_path)
    draw = random.Random(0)  # noqa: S311 - moments, not secrets
    arguments = ("study", "run", study, "--root", root, "--workers", "1")
    killed = []
    for moment, (pattern, count) in MOMENTS.items():
        # From the very moment to a little later, when something else may be half done.
        delay = draw.choice((0.0, 0.0, 0.1)) * draw.random()
        happens = appears(root, pattern, count)
        # While something is written all at once, or the worker would finish it.
        is_writing = ".partial-" in pattern
        if kill_when(happens, command(*arguments), all_at_once=is_writing, delay=delay):
            killed.append(moment)
    # A moment may slip by on a slow machine, but then the run ended before it was seen.
    assert len(killed) >= len(MOMENTS) - 1, killed
    code, _, err = cli(*arguments)
    assert code == 0, err
    assert len(scores(root)) == 5 * 2 * 2 + 2 * 2  # of arms and seeds, and of baselines, by task
    assert set(scores(root)) <= set(scores(finished / "root"))
    assert "all finished; nothing to do" in cli(*arguments)[1]
    # Nothing half-written is left behind in what studies share.
    assert not list((root / "store").rglob(".partial-*"))
    assert not list((root / "store/progress").iterdir())
