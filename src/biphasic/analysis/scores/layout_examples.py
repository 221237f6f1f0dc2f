"""Per-example test scores of results from other tools, read on demand."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from biphasic.analysis.scores.examples import (
    ExampleReader,
    ExampleScores,
    RunExamples,
    check_value,
    mean_examples,
)
from biphasic.analysis.scores.selection import GridScore
from biphasic.errors import DataError, reading


def example_reader(
    chosen: Mapping[tuple[str, str], tuple[GridScore[Path], ...]],
) -> ExampleReader:
    """Return a reader of the examples of the selected runs.

    Examples have no names in these files, so their order identifies them.
    """

    def read(model: str, dataset: str) -> ExampleScores:
        runs = chosen.get((model, dataset), ())
        if not runs:
            raise DataError(f"{model} on {dataset}: no run has finished")
        by_seed = {run.seed: _read(run) for run in runs}
        sizes = {examples.terms.shape[1] for examples in by_seed.values()}
        if len(sizes) > 1:
            raise DataError(f"{model} on {dataset}: seeds have different numbers of test examples")
        return ExampleScores(tuple(map(str, range(sizes.pop()))), by_seed)

    return read


def _read(run: GridScore[Path]) -> RunExamples:
    where = "/".join(run.run.parts[-5:-1])
    with reading(where, DataError):
        try:
            scores = json.loads(run.run.read_text("utf-8"))["test"]["scores_i"]
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"{where}: no scores of single examples") from None
    if not isinstance(scores, list) or not scores or not all(map(_is_number, scores)):
        raise DataError(f"{where}: 'test.scores_i' is not a list of numbers")
    examples = mean_examples([float(score) for score in scores])
    check_value(examples, run.test, where=where)
    return examples


def _is_number(value: object) -> bool:
    # JSON integers can be larger than any float.
    return isinstance(value, bool | int | float) and abs(value) <= sys.float_info.max
