"""Row planning and loading: rates, growth to a hundred million documents, share of a training step.

Three parts:

- `rate`: all rows of an epoch, planned one step after another. The limit beside it is copying as
  many tokens from the type that shards have to that of rows, which reading does in any case.
- `growth`: what a plan over 1e5 to 1e8 documents costs, of which only the lengths exist. Each point
  is a process of its own. A step in the middle is asked for cold, as after a resume: the windows
  before it are planned to know how many rows they have.
- `loader`: reading, masking and hashing a step's rows against the whole step on one thread.

Seconds are of the processor where nothing else is said. Lengths are log-normal with a mean of 700
tokens; the longest are far longer than a row. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import command_line, exponent, measured, write_records
from numpy.typing import NDArray

from biphasic.data.rows import NUM_SPECIAL, WINDOW_DOCUMENTS, BatchShape, RowPlan

MEAN_TOKENS = 700
SIGMA = 1.2
"""Of the logarithms: half of the documents have fewer than 341 tokens, one in a hundred 5,500."""
BLOCK_DOCUMENTS = 1_000_000
STEP_TOKENS = 65_536
ENDLESS_STEPS = 2**40
STEPS_AFTER = 100
EPOCH_DOCUMENTS = (100_000, 300_000, 1_000_000)
ALL_DOCUMENTS = 100_000_000
GROWTH = {
    "open_seconds": "opening",
    "first_step_seconds": "the first step",
    "window_seconds": "a window's steps",
    "middle_step_seconds": "a step in the middle, cold",
    "step_seconds": "the steps after it, each",
}
ROUNDS = 3
COPIED_TOKENS = 4_000_000
LOADER_STEPS = 2_000
LOADER_SHARE = 0.02
"""Of a step's time; the loader may take no more."""
LOADER_MODELS = ("nano", "micro")
LOADER_OBJECTIVES = ("clm", "mlm40")
PARTS = ("rate", "growth", "loader")


def draw_lengths(num_documents: int) -> NDArray[np.int64]:
    """Return documents' lengths; block by block, so that drawing takes no memory beside them."""
    lengths = np.empty(num_documents, dtype=np.int64)
    centre = np.log(MEAN_TOKENS) - SIGMA**2 / 2
    for start in range(0, num_documents, BLOCK_DOCUMENTS):
        block = lengths[start : start + BLOCK_DOCUMENTS]
        block[:] = np.random.default_rng(start).lognormal(centre, SIGMA, len(block)).clip(1)
    return lengths


def open_plan(lengths: NDArray[np.int64], max_seqlen: int) -> RowPlan:
    """Return a plan whose steps have `STEP_TOKENS` tokens, padding included."""
    return RowPlan(
        lengths, [BatchShape(max_seqlen, STEP_TOKENS // max_seqlen, ENDLESS_STEPS)], data_seed=0
    )


def seconds_of(action: Callable[[], Any], *, rounds: int = 1) -> float:
    """Return the processor seconds of an action, of the fastest of some rounds."""
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        action()
        seconds.append(time.process_time() - began)
    return min(seconds)


def plan_tokens(plan: RowPlan, num_tokens: int) -> tuple[float, int, int]:
    """Plan steps from the first until they hold so many tokens.

    Returns:
        Seconds, steps, and tokens without padding, special tokens included.
    """
    seconds, steps, tokens, text_tokens = 0.0, 0, 0, 0
    while text_tokens < num_tokens:
        began = time.process_time()
        rows = plan.rows(steps)
        seconds += time.process_time() - began
        lengths = [piece.end - piece.start for row in rows for piece in row]
        text_tokens += sum(lengths)
        tokens += sum(lengths) + NUM_SPECIAL * len(lengths)
        steps += 1
    return seconds, steps, tokens


def copied_tokens_per_second() -> float:
    """Return the best rate of copying tokens from shards' type to that of rows."""
    shard = np.arange(COPIED_TOKENS, dtype=np.uint16)
    rows = np.zeros(COPIED_TOKENS, dtype=np.int64)
    return COPIED_TOKENS / seconds_of(lambda: np.copyto(rows, shard), rounds=10 * ROUNDS)


def measure_rate(num_documents: int, max_seqlen: int) -> dict[str, float]:
    """Plan an epoch."""
    lengths = draw_lengths(num_documents)
    seconds, steps, tokens = plan_tokens(open_plan(lengths, max_seqlen), int(lengths.sum()))
    num_rows = steps * (STEP_TOKENS // max_seqlen)
    return {
        "seconds": seconds,
        "rows_per_second": num_rows / seconds,
        "tokens_per_second": tokens / seconds,
        "fill": tokens / (num_rows * max_seqlen),
        "copied_tokens_per_second": copied_tokens_per_second(),
    }


def measure_growth(num_documents: int, max_seqlen: int) -> dict[str, float]:
    """Open a plan and ask for steps at its beginning and, anew, in its middle."""
    lengths = draw_lengths(num_documents)
    middle = int(lengths.sum()) // STEP_TOKENS // 2
    open_seconds = seconds_of(lambda: open_plan(lengths, max_seqlen), rounds=ROUNDS)
    first_step_seconds = seconds_of(lambda: open_plan(lengths, max_seqlen).rows(0), rounds=ROUNDS)
    window_tokens = WINDOW_DOCUMENTS * MEAN_TOKENS
    window_seconds = min(
        plan_tokens(open_plan(lengths, max_seqlen), window_tokens)[0] for _ in range(ROUNDS)
    )
    plan = open_plan(lengths, max_seqlen)
    middle_step_seconds = seconds_of(lambda: plan.rows(middle))
    after = range(middle + 1, middle + 1 + STEPS_AFTER)
    step_seconds = seconds_of(lambda: [plan.rows(step) for step in after]) / STEPS_AFTER
    return {
        "open_seconds": open_seconds,
        "first_step_seconds": first_step_seconds,
        "window_seconds": window_seconds,
        "middle_step_seconds": middle_step_seconds,
        "step_seconds": step_seconds,
        "lengths_bytes": lengths.nbytes,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def measure_loader(argument: str) -> dict[str, float]:
    """Read, mask and hash rows as the training loop does; seconds of a clock on the wall."""
    import setup_pretraining as setup  # noqa: PLC0415 - planning needs no torch

    from biphasic.training.step.input import StepRows  # noqa: PLC0415

    setting = setup.Setting.parse(argument)
    setup.tune_allocator()
    data, recipe = setting.training_data(), setting.recipe
    reader, phase = StepRows(recipe, data), recipe.phases[0]
    chain, tokens = hashlib.sha256(b"").digest(), 0
    seconds = []
    for step in range(LOADER_STEPS):
        began = time.perf_counter()
        batch = reader.batch(step)
        phase.supervise(batch, data.vocabulary, mask_seed=recipe.seeds.mask_seed)
        chain = hashlib.sha256(chain + batch.sha256()).digest()
        seconds.append(time.perf_counter() - began)
        tokens += batch.packed.num_tokens
    return {
        "seconds_per_step": sum(seconds) / len(seconds),
        "longest_seconds": max(seconds),
        "tokens_per_second": tokens / sum(seconds),
    }


def measure_step(argument: str) -> dict[str, float]:
    """Train as it is, the loader included."""
    import setup_pretraining as setup  # noqa: PLC0415 - planning needs no torch

    return setup.measure_ours(setup.Setting.parse(argument))


def in_own_process(what: str, *arguments: object) -> dict[str, float]:
    """Measure one point in a fresh process of one thread."""
    return measured([__file__, "--measure", what, *map(str, arguments)])[0]


def compare_rates(max_seqlen: int) -> Iterable[dict[str, Any]]:
    """Plan whole epochs of more and more documents; print how fast, and how that grows."""
    seconds = []
    for num_documents in EPOCH_DOCUMENTS:
        found = in_own_process("rate", num_documents, max_seqlen)
        ratio = found["tokens_per_second"] / found["copied_tokens_per_second"]
        seconds.append(found["seconds"])
        print(
            f"rate {max_seqlen:5} tokens per row, {num_documents:11,} documents: "
            f"{found['seconds']:6.2f} s, {found['rows_per_second']:11,.0f} rows/s, "
            f"{found['tokens_per_second'] / 1e6:6,.0f} M tokens/s, {found['fill']:.2%} full;  "
            f"{ratio:.2f}x the rate of copying the tokens",
            flush=True,
        )
        yield {
            "part": "rate",
            "max_seqlen": max_seqlen,
            "documents": num_documents,
            **found,
            "over_copying": ratio,
        }
    slope = exponent(EPOCH_DOCUMENTS, seconds)
    extrapolated = seconds[-1] * ALL_DOCUMENTS / EPOCH_DOCUMENTS[-1]
    print(
        f"rate {max_seqlen:5} tokens per row: seconds grow with exponent {slope:.2f}; "
        f"{ALL_DOCUMENTS:,} documents would take {extrapolated:,.0f} s, extrapolated linearly",
        flush=True,
    )
    yield {
        "part": "rate",
        "max_seqlen": max_seqlen,
        "exponent": slope,
        "extrapolated_documents": ALL_DOCUMENTS,
        "extrapolated_seconds": extrapolated,
    }


def compare_sizes(max_seqlen: int, sizes: Sequence[int]) -> Iterable[dict[str, Any]]:
    """Measure plans over more and more documents; print what grows, and how."""
    points = []
    for num_documents in sizes:
        found = in_own_process("growth", num_documents, max_seqlen)
        points.append(found)
        print(
            f"growth {max_seqlen:5} tokens per row, {num_documents:11,} documents: "
            f"open {1e6 * found['open_seconds']:.0f} us, "
            f"first step {1e3 * found['first_step_seconds']:.1f} ms, "
            f"window {1e3 * found['window_seconds']:.0f} ms, "
            f"middle {found['middle_step_seconds']:.2f} s, "
            f"then {1e3 * found['step_seconds']:.2f} ms a step;  "
            f"{found['peak_bytes'] / 1e6:,.0f} MB, "
            f"{found['peak_bytes'] / found['lengths_bytes']:.2f}x the lengths alone",
            flush=True,
        )
        yield {
            "part": "growth",
            "max_seqlen": max_seqlen,
            "documents": num_documents,
            **found,
            "over_lengths": found["peak_bytes"] / found["lengths_bytes"],
        }
    for key, name in GROWTH.items() if len(sizes) > 1 else ():
        costs = [point[key] for point in points]
        slopes = {
            "exponent": exponent(sizes, costs),
            "exponent_at_the_end": exponent(sizes[-2:], costs[-2:]),
        }
        print(
            f"growth {max_seqlen:5} tokens per row: {name}: exponent {slopes['exponent']:.2f}, "
            f"{slopes['exponent_at_the_end']:.2f} between the two largest",
            flush=True,
        )
        yield {"part": "growth", "max_seqlen": max_seqlen, "cost": key, **slopes}


def compare_loader(seconds: float) -> Iterable[dict[str, Any]]:
    """Measure the loader against whole steps, and print its share."""
    import setup_pretraining as setup  # noqa: PLC0415 - planning needs no torch

    with tempfile.TemporaryDirectory() as folder:
        setup.prepare(Path(folder), [setup.TRAINED_VOCABULARY])
        for model, objective in itertools.product(LOADER_MODELS, LOADER_OBJECTIVES):
            setting = setup.Setting(
                folder, model, setup.TRAINED_VOCABULARY, objective, "bf16", seconds
            )
            loader = in_own_process("loader", setting.dump())
            step = in_own_process("step", setting.dump())
            share = loader["seconds_per_step"] / step["seconds_per_step"]
            print(
                f"loader {model:5} {objective:5} bf16: {1e3 * loader['seconds_per_step']:.2f} ms "
                f"of a step of {1e3 * step['seconds_per_step']:,.0f} ms, at most "
                f"{1e3 * loader['longest_seconds']:.1f} ms; "
                f"{loader['tokens_per_second'] / 1e6:.1f} M tokens/s;  {share:.2%} of the step, "
                f"{'within' if share <= LOADER_SHARE else 'ABOVE'} {LOADER_SHARE:.0%}",
                flush=True,
            )
            yield {
                "part": "loader",
                "model": model,
                "objective": objective,
                "precision": "bf16",
                "loader_seconds_per_step": loader["seconds_per_step"],
                "loader_longest_seconds": loader["longest_seconds"],
                "loader_tokens_per_second": loader["tokens_per_second"],
                "step_seconds": step["seconds_per_step"],
                "share_of_step": share,
            }


def run(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """Measure the parts that were asked for."""
    # The loader comes last: its libraries would count in the memory of children started after.
    for max_seqlen in options.max_seqlens:
        if "rate" in options.parts:
            yield from compare_rates(max_seqlen)
        if "growth" in options.parts:
            yield from compare_sizes(max_seqlen, options.documents)
    if "loader" in options.parts:
        yield from compare_loader(options.seconds)


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "pipeline")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--max-seqlens", nargs="+", type=int, default=[256, 2048])
    parser.add_argument(
        "--documents",
        nargs="+",
        type=int,
        default=[100_000, 1_000_000, 10_000_000, 100_000_000],
        help="sizes of `growth`; a hundred million need 1 GB",
    )
    parser.add_argument("--seconds", type=float, default=6, help="of each training")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.measure:
        write_records(options.json, list(run(options)))
        return
    what, *arguments = options.measure
    if what in {"rate", "growth"}:
        measure = {"rate": measure_rate, "growth": measure_growth}[what]
        print(json.dumps(measure(*map(int, arguments))))
    else:
        print(json.dumps({"loader": measure_loader, "step": measure_step}[what](*arguments)))


if __name__ == "__main__":
    main()
