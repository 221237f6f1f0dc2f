"""torchrun, started as `python -m biphasic.execution.torchrun`, which ends quietly on a signal."""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main

if __name__ == "__main__":
    try:
        main()
    except SignalException:  # its ranks have been told; its traceback helps nobody
        sys.exit(1)
