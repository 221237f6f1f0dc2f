"""An objective under which ranks meet with what `GANG_FAULT` says, at steps of their own."""

import os
import resource
import signal
import time
from pathlib import Path

from biphasic.data.rows import RowBatch
from biphasic.errors import DataError
from biphasic.files import write_text
from biphasic.objectives.clm import Clm
from biphasic.objectives.masking import Mlm
from biphasic.objectives.objective import ObjectiveConfig
from biphasic.objectives.supervision import Supervision, Vocabulary

PATIENCE = 240.0


def checkpoint_of(store: Path) -> int:
    """Return the step of the newest complete checkpoint; 0 for none."""
    found = store.glob("progress/*/step-*/manifest.json")
    return max((int(path.parent.name.removeprefix("step-")) for path in found), default=0)


class Faulty(ObjectiveConfig):
    """CLM or MLM, in ranks that note their process ids in `GANG_FOLDER`."""

    causal: bool
    first: int = 0
    """Steps of earlier phases."""
    step: int = 0

    @property
    def directions(self) -> frozenset[bool]:
        return frozenset({self.causal})

    def at(self, step: int, *, num_steps: int) -> ObjectiveConfig:  # noqa: ARG002
        return self.model_copy(update={"step": step})

    def supervise(
        self, batch: RowBatch, vocabulary: Vocabulary, *, mask_seed: int
    ) -> tuple[Supervision, ...]:
        if fault := os.environ.get("GANG_FAULT"):
            meet(fault, self.first + self.step, Path(os.environ["GANG_FOLDER"]))
        objective = Clm(objective="clm") if self.causal else Mlm(objective="mlm")
        return objective.supervise(batch, vocabulary, mask_seed=mask_seed)


def meet(fault: str, step: int, folder: Path) -> None:
    """Take some time, and do what a fault does to this rank at this step."""
    rank, ranks, store = os.environ["RANK"], folder / "ranks", folder / "store"
    write_text(ranks / f"pid-{rank}", str(os.getpid()))  # whole at once: it may be read now
    time.sleep(0.1 if fault == "slow" else 0.01)
    while fault == "attack" and step == 4 and not (ranks / "attacked").exists():
        time.sleep(0.01)
    full = fault == "full disk" and step == 3
    strikes = rank == "1" and {"error": 3, "kill": 7, "hang": 3}.get(fault) == step
    while (full or strikes) and checkpoint_of(store) < step - 1:
        time.sleep(0.01)  # it is written in the background
    if full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    if strikes and fault == "error":
        raise DataError("row 7: made up by a test")
    if strikes and fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if strikes:
        write_text(ranks / "hangs", "")
        time.sleep(PATIENCE)
