"""Tokens per second and memory of `biphasic adapt` against a plain transformers loop.

Both read the same text in rows of the same length, mask 40 %, and update fp32 weights with AdamW
and clipping; in bf16 the loop uses `torch.autocast`. The loop joins documents end to end and
attends across them, and `config.is_causal = False` opens its attention. It is what one writes
without a library: no packing, checkpoints, held-out loss or export. See README.md beside this file.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from harness import command_line, measured, run_process, write_records
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

MLM_PROBABILITY = 0.4
WARMUP_STEPS = 2
COMMAND = "from biphasic.cli.main import main; main()"


def measure_ours(options: Namespace, folder: Path) -> dict[str, Any]:
    """Adapt a model by the command; return the median speed of its steps, and its cost."""
    root = folder / "runs"
    _, cost = run_process(
        [
            *(sys.executable, "-c", COMMAND, "adapt", str(options.model), "--quiet"),
            *("--corpus", str(options.text), "--root", str(root), "--out", str(folder / "out")),
            *("--steps", str(WARMUP_STEPS + options.steps), "--checkpoint-every", "0"),
            *("--rows-per-step", str(options.rows), "--max-seqlen", str(options.max_seqlen)),
            *("--mlm-probability", str(MLM_PROBABILITY), "--precision", options.precision),
            *("--format", "hf", "--device", "cpu"),
        ],
        threads=options.threads,
    )
    [metrics] = root.glob("store/states/*/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    # The last line has the held-out losses.
    speeds = [line["tokens_per_second"] for line in lines if "loss" in line][WARMUP_STEPS:]
    return {"tokens_per_second": statistics.median(speeds), "peak_bytes": cost.peak_bytes}


def _texts(path: Path) -> Iterator[str]:
    """Yield the texts of a file of JSON lines, over and over."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return (json.loads(line)["text"] for line in itertools.cycle(lines))


def run_plain(options: Namespace) -> None:
    """Train in this process by a plain loop, and print the median speed of its steps."""
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.add_special_tokens({"mask_token": tokenizer.mask_token or "<|mask|>"})
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    model.config.is_causal = False
    model.resize_token_embeddings(max(len(tokenizer), model.config.vocab_size))
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=MLM_PROBABILITY)
    length, batch = options.max_seqlen, options.rows
    tokens = (token for text in _texts(options.text) for token in tokenizer(text)["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    speeds = []
    for _ in range(WARMUP_STEPS + options.steps):
        began = time.perf_counter()
        rows = [list(itertools.islice(tokens, length)) for _ in range(batch)]
        inputs = collate([{"input_ids": row} for row in rows])
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            logits = model(input_ids=inputs["input_ids"]).logits
        labels = inputs["labels"]  # a causal class would shift them
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        speeds.append(batch * length / (time.perf_counter() - began))
    print(json.dumps({"tokens_per_second": statistics.median(speeds[WARMUP_STEPS:])}))


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "adapt")
    parser.add_argument("model", type=Path, help="folder of a decoder")
    parser.add_argument("text", type=Path, help="JSON lines with a field 'text'")
    parser.add_argument("--steps", type=int, default=10, help="measured; the median is reported")
    parser.add_argument("--rows", type=int, default=8, help="per step")
    parser.add_argument("--max-seqlen", type=int, default=512)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="run the loop in this process only")
    options = parser.parse_args()
    if options.plain:
        run_plain(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        sides = {"ours": measure_ours(options, Path(folder))}
    found, cost = measured([__file__, *sys.argv[1:], "--plain"], threads=options.threads)
    sides["plain loop"] = {**found, "peak_bytes": cost.peak_bytes}
    for side, numbers in sides.items():
        speed, memory = numbers["tokens_per_second"], numbers["peak_bytes"] / 1e9
        print(f"{side:10} {speed:8,.0f} tokens/s {memory:6.2f} GB")
    write_records(
        options.json,
        [{"side": side, "model": options.model.name, **found} for side, found in sides.items()],
    )


if __name__ == "__main__":
    main()
