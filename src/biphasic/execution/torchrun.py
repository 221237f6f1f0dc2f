"""torchrun, started as `python -m biphasic.execution.torchrun`, which ends quietly on a signal."""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main


def run() -> None:
    """Run torchrun with this process's arguments; exit with code 1 on a signal."""
    try:
        main()
    except SignalException:  # the ranks were told to stop; a traceback would only hide that
        sys.exit(1)


if __name__ == "__main__":
    run()
