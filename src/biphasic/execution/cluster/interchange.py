"""Parsl's interchange; by itself, it and its nodes would outlive a driver that was killed."""

from __future__ import annotations

import os
import runpy
import signal
import threading
import time


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    # Ctrl-C in a terminal reaches it too; jobs save their progress first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    runpy.run_module("parsl.executors.high_throughput.interchange", run_name="__main__")
