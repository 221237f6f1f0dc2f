"""Loss spikes: reported to the user, without effect on training.

A loss is a spike if it lies more than `DEVIATIONS` standard deviations above the median of the last
`WINDOW` losses of the same phase and objective. The deviation is estimated robustly, as 1.4826
times the median distance from the median, so one outlier does not hide the next. Window and
threshold are those of OLMo-core (`SkipStepOptimizer`), which takes mean and standard deviation and
skips the update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from biphasic.training.recipe import Recipe

WINDOW = 128  # losses that one is compared with
LEAST = 64  # losses before the first comparison
DEVIATIONS = 6.0  # standard deviations above the median
# Standard deviation of a normal distribution over its median distance from the median.
_TO_DEVIATION = 1.4826


class SpikeWatch:
    """The last losses of each phase and objective."""

    def __init__(self, recipe: Recipe, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        """Continue after lines of metrics."""
        self._recipe = recipe
        self._losses: dict[tuple[int, str], deque[float]] = {}
        self._is_above = False
        for line in lines:
            if "loss" in line:
                self.see(line["step"], line["loss"])

    def see(self, number: int, loss: float) -> str:
        """Take a step's loss; return a warning at the first step of a spike, else ''."""
        step = number - 1  # counted from 0, like rows and schedules
        placed = self._recipe.phase_at(step)
        key = placed.index, placed.objective(step).short_name
        losses = self._losses.setdefault(key, deque(maxlen=WINDOW))
        was_above, self._is_above, text = self._is_above, False, ""
        if len(losses) >= LEAST:
            middle = median(losses)
            deviation = _TO_DEVIATION * median(abs(each - middle) for each in losses)
            self._is_above = deviation > 0 and loss > middle + DEVIATIONS * deviation
            if self._is_above and not was_above:
                text = (
                    f"step {step}: loss spike, {loss:.3f} is "
                    f"{(loss - middle) / deviation:.0f} standard deviations above the median "
                    f"{middle:.3f} of the last {len(losses)} losses"
                )
        losses.append(loss)
        return text
