"""Memory, time and losses of `biphasic adapt` by LoRA and by full training, side by side.

Each way is a process of its own, on the same rows. `random-1b` is a decoder of a billion random
weights in Llama's architecture, which shows what memory suffices. See README.md beside this file.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import command_line, measured, run_process, write_records
from transformers import LlamaConfig, LlamaForCausalLM

from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.model.shape import PRESETS

COMMAND = "from biphasic.cli.main import main; main()"
RANDOM = "random-1b"


def write_random(folder: Path, tokenizer: TextTokenizer) -> None:
    """Write a decoder of random weights with the dimensions of the preset `1b`."""
    sizes = PRESETS["1b"]
    special = tokenizer.special_ids
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        tie_word_embeddings=True,
        bos_token_id=special["bos"],
        eos_token_id=special["eos"],
        pad_token_id=special["pad"],
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)
    print(json.dumps({"folder": str(folder)}))


def measure(options: Namespace, model: Path, way: Sequence[str], folder: Path) -> dict[str, Any]:
    """Adapt a model by the command; return its memory, times and losses."""
    root = folder / "runs"
    _, cost = run_process(
        [
            *(sys.executable, "-c", COMMAND, "adapt", str(model), "--quiet", *way),
            *("--corpus", str(options.text), "--root", str(root), "--out", str(folder / "out")),
            *("--steps", str(options.steps), "--checkpoint-every", "0", "--objective", "mntp"),
            *("--rows-per-step", str(options.rows), "--max-seqlen", str(options.max_seqlen)),
            *("--precision", options.precision, "--format", "sentence-transformers"),
            *("--device", "cpu"),
            *(("--learning-rate", str(options.rate)) if options.rate else ()),
        ],
        threads=options.threads,
    )
    [state] = [path.parent for path in root.glob("store/states/*/metrics.jsonl")]
    lines = [json.loads(line) for line in (state / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["tokens_per_second"] for line in lines if "loss" in line]
    return {
        "peak_bytes": cost.peak_bytes,
        "seconds": cost.seconds,
        "cpu_seconds": cost.cpu_seconds,
        "tokens_per_second": statistics.median(speeds[1:] or speeds),
        "state_bytes": sum(path.stat().st_size for path in state.iterdir()),
        "heldout": lines[-1].get("heldout", {}),
    }


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "lora")
    parser.add_argument("model", help=f"folder of a decoder, or {RANDOM}")
    parser.add_argument("text", type=Path, help="JSON lines with a field 'text'")
    parser.add_argument("--ways", nargs="+", default=["lora", "full"], choices=("lora", "full"))
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rows", type=int, default=8, help="per step")
    parser.add_argument("--max-seqlen", type=int, default=256)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--rate", type=float, help="peak rate; default: that of adapt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the encoders, to evaluate them after")
    parser.add_argument("--write-to", type=Path, help="write the random decoder and end")
    options = parser.parse_args()
    if options.write_to:
        texts = [json.loads(line)["text"] for line in options.text.read_text().splitlines()]
        write_random(options.write_to, train_tokenizer(texts[:2000], vocab_size=1024))
        return
    records = []
    with tempfile.TemporaryDirectory() as name:
        model = Path(options.model)
        if options.model == RANDOM:
            model = Path(name) / "decoder"
            measured([__file__, *sys.argv[1:], "--write-to", str(model)])
        for way in options.ways:
            added = ("--lora", f"rank={options.rank}") if way == "lora" else ()
            numbers = measure(options, model, added, (options.keep or Path(name)) / way)
            records.append({"way": way, "model": model.name, **numbers})
            print(
                f"{way:5} {numbers['peak_bytes'] / 1e9:6.2f} GB "
                f"{numbers['cpu_seconds']:8,.0f} CPU s "
                f"{numbers['tokens_per_second']:8,.0f} tokens/s, state "
                f"{numbers['state_bytes'] / 1e9:.2f} GB, held-out {numbers['heldout']}"
            )
    write_records(options.json, records)


if __name__ == "__main__":
    main()
