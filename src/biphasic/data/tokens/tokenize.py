"""Converts blocks of documents to shards on worker processes; a restart reuses finished shards.

Workers are plain subprocesses: they do not need `if __name__ == "__main__"` in the caller's script,
and end when the caller does. The result depends neither on interruptions nor on their number.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import sys
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import LifoQueue, SimpleQueue

from biphasic.child import Child, messages
from biphasic.data.tokens.shards import Block, write_shard
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import (
    BiphasicError,
    CheckpointError,
    DataError,
    StoppedError,
    StudyError,
    system_fault_in,
)
from biphasic.files import remove_partials
from biphasic.store import SHARD, is_complete

_WAITING_BLOCKS = 2  # blocks waiting besides one per worker, so no worker is idle
_PIPE_BYTES = 1 << 20
# One core per worker, so as many run as requested.
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class ShardMaker:
    """Makes shards from blocks, in this process (one worker) or in several others.

    Memory is bounded: `make` waits while every worker is busy and some blocks are waiting.

    Attributes:
        num_found: Shards found from an interrupted build.
    """

    def __init__(self, folder: Path, tokenizer_folder: Path, *, num_workers: int) -> None:
        """Prepare; workers start with their first block. A single worker is this process."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        remove_partials(folder)
        self.num_found = 0
        self._tokenizer = TextTokenizer.load(tokenizer_folder)
        self.tokenizer_sha256 = self._tokenizer.sha256
        self._room = threading.Semaphore(num_workers + _WAITING_BLOCKS)
        self._workers = [
            _Worker(tokenizer_folder, folder / f"worker-{number}.log")
            for number in range(num_workers if num_workers > 1 else 0)
        ]
        self._idle: LifoQueue[_Worker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(num_workers)

    def make(self, block: Block, *, label: str) -> Future[Path]:
        """Request a shard, once there is room; return its folder, or a DataError, as a future."""
        folder = self._folder / block.key(self.tokenizer_sha256)
        is_found = _is_whole(folder)
        self.num_found += is_found
        if self._workers and not is_found:
            self._room.acquire()
            ordered = self._threads.submit(self._make_elsewhere, folder, block, label)
            ordered.add_done_callback(lambda _: self._room.release())
            return ordered
        if not is_found:
            write_shard(folder, block, self._tokenizer)
        made: Future[Path] = Future()
        made.set_result(folder)
        return made

    def __enter__(self) -> ShardMaker:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers immediately; finished shards stay."""
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()

    def _make_elsewhere(self, folder: Path, block: Block, label: str) -> Path:
        worker = self._idle.get()
        try:
            if problem := worker.write(folder, block, label):
                raise system_fault_in(problem, folder) or DataError(problem, about=label)
        finally:
            self._idle.put(worker)
        return folder


class _Worker(Child):
    """Writes shards in a separate process."""

    def __init__(self, tokenizer_folder: Path, log: Path) -> None:
        module, folder = "biphasic.data.tokens.tokenize", str(tokenizer_folder.resolve())
        super().__init__([sys.executable, "-m", module, folder], log=log, environment=_ONE_THREAD)

    def write(self, folder: Path, block: Block, label: str) -> str | None:
        """Write a shard, or return why its documents or its folder prevent it."""
        if (pipes := self.started()) is None:
            raise StoppedError("not made because the build was stopped", about=label)
        stdin, stdout = pipes
        # Only an optimization: a user's quota of pipes may be used up, and not every system
        # supports it.
        with suppress(OSError, AttributeError):
            fcntl.fcntl(stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        with suppress(BrokenPipeError):
            pickle.dump((folder, block), stdin)
            stdin.flush()
            for answer in messages(stdout, "error", other=self.log):
                return answer["error"]
        raise StudyError(
            f"its worker died (killed, or out of memory?); run again to resume; see {self._log}",
            about=label,
        )


def _is_whole(shard: Path) -> bool:
    """Return whether a shard is complete; delete it if it is damaged, as it can be made again."""
    if not is_complete(shard):
        return False
    try:
        SHARD.open(shard).verify()
    except CheckpointError:
        shutil.rmtree(shard)
        return False
    return True


def main() -> None:
    """Be a worker: read pickled pairs of a folder and a block, write shards, answer in JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries goes to the log
    requests: SimpleQueue[tuple[Path, Block]] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    tokenizer = TextTokenizer.load(Path(sys.argv[1]))
    while True:
        answers.write(json.dumps(_serve(*requests.get(), tokenizer)) + "\n")
        answers.flush()


def _read_requests(requests: SimpleQueue[tuple[Path, Block]]) -> None:
    """Queue requests; exit immediately at the end of input, even while writing a shard."""
    try:
        while True:
            requests.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - written by our parent
    except EOFError:
        pass  # the parent has ended or finished; an incomplete shard is ignored
    except Exception:  # noqa: BLE001 - the log shows why the worker ends
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _serve(folder: Path, block: Block, tokenizer: TextTokenizer) -> dict[str, str | None]:
    try:
        write_shard(folder, block, tokenizer)
    except (BiphasicError, OSError) as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - sent to the caller; the log has the traceback
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


if __name__ == "__main__":
    main()
