"""Real sets in the field's formats, as people would name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from biphasic.tasks.folder import load_task
from biphasic.tasks.records import SPLITS
from biphasic.tasks.source import find_source, prepare_task

SHARED = Path(__file__).parents[4] / "shared" / "data" / "tasks"
SIZES = {
    "sc:sick": (4421, 494, 4927),
    "tc:wnut17": (3394, 1009, 1287),
    "qa:squad": (12043, 1736, 2651),
    "ir:cranfield": (135, 45, 45),
    "zs:cranfield": (0, 45, 45),
    "sts:sts15": (0, 0, 3000),
}

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared task data are not here")


@pytest.mark.parametrize("source", SIZES)
def test_reads_real_sets(tmp_path, source):
    kind, name = source.split(":")
    folder = SHARED / ("ir" if kind == "zs" else kind) / name
    said: list[str] = []
    task = load_task(prepare_task(find_source(f"{kind}:{folder}"), store=tmp_path, say=said.append))
    assert tuple(task.num_examples(split) for split in SPLITS) == SIZES[source]
    # The sets' own description promises that no text stands in two splits.
    assert task.info.overlaps == {}
    assert len(said) == 1
    if kind == "qa":
        assert sum(not question.answers for question in task.splits["test"]) == 1130
