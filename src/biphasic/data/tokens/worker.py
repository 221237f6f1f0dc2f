"""Worker process of `tokenize.py`: reads pickled pairs of a folder and a block, writes shards.

It answers in lines of JSON, and ends with its input, so it never outlives its parent.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import traceback
from pathlib import Path
from queue import SimpleQueue

from biphasic.data.tokens.shards import DocumentBatch, write_shard
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.errors import BiphasicError

_Request = tuple[Path, DocumentBatch]


def main() -> None:
    """Process requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries goes to the log
    requests: SimpleQueue[_Request] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    tokenizer = TextTokenizer.load(Path(sys.argv[1]))
    while True:
        answers.write(json.dumps(_serve(*requests.get(), tokenizer)) + "\n")
        answers.flush()


def _read_requests(requests: SimpleQueue[_Request]) -> None:
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


def _serve(folder: Path, block: DocumentBatch, tokenizer: TextTokenizer) -> dict[str, str | None]:
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
