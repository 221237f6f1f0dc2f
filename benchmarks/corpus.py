"""Our tokenising against `datasets.map` with the same tokenizer and text; memory on large input.

Both sides use two processes of one thread each, every measurement is a process of its own, and
what is compared is checked to be the same number of tokens. Ours is the whole build: reading,
selecting, tokenising, hashing, putting together. Theirs is `map` alone, on text that was converted
to Arrow before. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from harness import command_line, write_records

from biphasic.data.building.build import CorpusFolders, build_corpus
from biphasic.data.building.config import CorpusConfig
from biphasic.data.corpus import Corpus
from biphasic.data.text.sources import SourceConfig, read_documents
from biphasic.data.tokens.tokenizer import train_tokenizer, write_tokenizer

PROCESSES = 2
VOCAB_SIZE = 8192
TOKENIZER_BYTES = 20_000_000
MEMORY_INPUTS = (200_000_000, 2_000_000_000)
POLL_SECONDS = 0.05
SIDES = ("ours", "datasets.map")


def documents(text: str) -> Iterator[tuple[str, str]]:
    """Read a source again and again, with other ids each time."""
    repetition = 0
    while True:
        for document in read_documents(SourceConfig(source=text)):
            yield f"{repetition}/{document.id}", document.text
        repetition += 1


def write_input(path: Path, text: str, num_bytes: int) -> None:
    """Write JSON lines with that much text."""
    written = 0
    with path.open("w", encoding="utf-8") as lines:
        for key, content in documents(text):
            lines.write(json.dumps({"id": key, "text": content}, ensure_ascii=False) + "\n")
            written += len(content.encode())
            if written >= num_bytes:
                return


def write_trained_tokenizer(folder: Path, text: str) -> None:
    """Train the tokenizer that both sides use."""
    texts: list[str] = []
    num_bytes = 0
    for _, content in documents(text):
        texts.append(content)
        num_bytes += len(content.encode())
        if num_bytes >= TOKENIZER_BYTES:
            break
    write_tokenizer(train_tokenizer(texts, vocab_size=VOCAB_SIZE), folder)


def run_ours(file: Path, tokenizer: Path, work: Path) -> dict[str, float]:
    """Build a corpus; everything counts."""
    config = CorpusConfig.model_validate({"sources": [str(file)], "tokenizer": str(tokenizer)})
    began = time.perf_counter()
    build_corpus(config, work / "corpus", num_workers=PROCESSES, say=lambda _: None)
    seconds = time.perf_counter() - began
    folders = CorpusFolders.below(work / "corpus")
    num_tokens = sum(Corpus(folder).num_tokens for folder in (folders.train, folders.heldout))
    return {"seconds": seconds, "tokens": num_tokens}


def run_map(file: Path, tokenizer: Path, work: Path) -> dict[str, float]:
    """Run `datasets.map` on text that is Arrow already; `map` alone counts."""
    import datasets  # noqa: PLC0415 - not in the process that measures ours
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    datasets.disable_progress_bars()
    fast = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    rows = datasets.load_dataset(
        "json", data_files=str(file), split="train", cache_dir=str(work / "cache")
    )

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encoded = fast(
            batch["text"],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return {"input_ids": encoded["input_ids"]}

    before = cpu_seconds()
    began = time.perf_counter()
    mapped = rows.map(tokenize, batched=True, num_proc=PROCESSES, remove_columns=rows.column_names)
    seconds = time.perf_counter() - began
    cpu = cpu_seconds() - before
    ids: Any = mapped.data.column("input_ids")
    num_tokens = sum(len(chunk.flatten()) for chunk in ids.chunks)
    return {"seconds": seconds, "cpu_seconds": cpu, "tokens": num_tokens}


def cpu_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def measure(side: str, file: Path, tokenizer: Path) -> dict[str, Any]:
    """Run one side in a process of its own, and sample its memory."""
    with tempfile.TemporaryDirectory(dir=file.parent) as work:
        command = [sys.executable, __file__, "--side", side, str(file), str(tokenizer), work]
        environment = {
            **os.environ,
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            memory = Memory(process.pid)
            output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{side} failed")
        return {**json.loads(output.splitlines()[-1]), **memory.result()}


class Memory:
    """Highest resident memory of a process with its children, sampled until it ends."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._most = self._most_own = 0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def result(self) -> dict[str, float]:
        """Return the highest sums in MB: all memory, and without pages of mapped files."""
        self._thread.join()
        return {"peak_rss_mb": self._most / 1e6, "peak_anonymous_mb": self._most_own / 1e6}

    def _watch(self) -> None:
        while (own := resident(self._pid))[0]:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(self._pid).children()
                sizes = [own, *(resident(child.pid) for child in children)]
                self._most = max(self._most, sum(size[0] for size in sizes))
                self._most_own = max(self._most_own, sum(size[1] for size in sizes))
            time.sleep(POLL_SECONDS)


def resident(pid: int) -> tuple[int, int]:
    """Return a process's resident memory and its anonymous part, in bytes; 0 once it ended."""
    with suppress(psutil.NoSuchProcess):
        memory = psutil.Process(pid).memory_info()
        return memory.rss, memory.rss - memory.shared
    return 0, 0


def compare(work: Path, text: str, num_bytes: int, rounds: int) -> dict[str, Any]:
    """Measure both sides in turns; the best of each counts."""
    file, tokenizer = work / "text.jsonl", work / "tokenizer"
    write_input(file, text, num_bytes)
    best: dict[str, Any] = {}
    for _ in range(rounds):
        for side in SIDES:
            found = measure(side, file, tokenizer)
            if side not in best or found["seconds"] < best[side]["seconds"]:
                best[side] = found
    assert best["ours"]["tokens"] == best["datasets.map"]["tokens"], best
    megabytes = num_bytes / 1e6
    for side, found in best.items():
        found |= {
            "mb_per_second": megabytes / found["seconds"],
            "mb_per_cpu_second": megabytes / found["cpu_seconds"],
            "tokens_per_second": found["tokens"] / found["seconds"],
            "tokens_per_second_per_core": found["tokens"] / found["seconds"] / PROCESSES,
        }
        print(
            f"{side:13} {megabytes:,.0f} MB in {found['seconds']:.1f} s: "
            f"{found['mb_per_second']:.2f} MB/s, {found['tokens_per_second']:,.0f} tokens/s "
            f"({found['mb_per_second'] / PROCESSES:.2f} MB/s, "
            f"{found['tokens_per_second_per_core']:,.0f} tokens/s per core; "
            f"{found['mb_per_cpu_second']:.2f} MB per CPU second)"
        )
    ratio = best["datasets.map"]["seconds"] / best["ours"]["seconds"]
    cpu_ratio = best["datasets.map"]["cpu_seconds"] / best["ours"]["cpu_seconds"]
    print(f"ours is {ratio:.2f}x as fast, {cpu_ratio:.2f}x per CPU second")
    return {"text_bytes": num_bytes, "sides": best, "ratio": ratio, "cpu_ratio": cpu_ratio}


def measure_memory(work: Path, text: str) -> list[dict[str, Any]]:
    """Measure a build's memory on a large and on a ten times larger input."""
    found = []
    for num_bytes in MEMORY_INPUTS:
        file = work / "large.jsonl"
        write_input(file, text, num_bytes)
        result = {"text_bytes": num_bytes, **measure("ours", file, work / "tokenizer")}
        file.unlink()
        found.append(result)
        print(
            f"build of {num_bytes / 1e6:,.0f} MB in {result['seconds']:.0f} s: at most "
            f"{result['peak_rss_mb']:.0f} MB resident in all processes, "
            f"{result['peak_anonymous_mb']:.0f} MB of it their own"
        )
    return found


def main() -> None:
    """Parse, measure, print."""
    parser = command_line(__doc__, "corpus")
    parser.add_argument("--text", default="builtin:pydocs", help="source that input repeats")
    parser.add_argument("--megabytes", type=float, default=110, help="of text, for the comparison")
    parser.add_argument("--rounds", type=int, default=1, help="the best of so many counts")
    parser.add_argument("--large", action="store_true", help="measure memory on 200 MB and 2 GB")
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, *paths = arguments.side
        before = cpu_seconds()
        found = (run_ours if side == "ours" else run_map)(*map(Path, paths))
        print(json.dumps({"cpu_seconds": cpu_seconds() - before, **found}))
        return
    work = Path(tempfile.mkdtemp(prefix="biphasic-corpus-"))
    try:
        write_trained_tokenizer(work / "tokenizer", arguments.text)
        if arguments.large:
            results: dict[str, Any] = {"memory": measure_memory(work, arguments.text)}
        else:
            results = compare(
                work, arguments.text, int(arguments.megabytes * 1_000_000), arguments.rounds
            )
    finally:
        shutil.rmtree(work)
    write_records(arguments.json, [results])


if __name__ == "__main__":
    main()
