"""torchrun, started as `python -m biphasic.execution.torchrun`, without its tracebacks."""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main


def run() -> None:
    """Run torchrun with this process's arguments; exit with code 1 on a signal or a failed rank."""
    try:
        main()
    except (SignalException, ChildFailedError):  # ranks report their own errors
        sys.exit(1)


if __name__ == "__main__":
    run()
