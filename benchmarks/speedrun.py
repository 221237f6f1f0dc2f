"""The encoder speedrun: how little text and CPU time reach the best loss and BLiMP of AdamW?

speedrun.md has the rules. `prepare` builds the fixed corpus, `run` trains and judges entries
(recipes in speedrun/entries/) over seeds, and `table` tests their records against the baseline's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from harness import machine
from scipy.stats import ttest_1samp

from biphasic import evaluate
from biphasic.data.building.build import CorpusFolders, build_corpus
from biphasic.data.building.config import CorpusConfig
from biphasic.data.corpus import Corpus
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.files import read_json
from biphasic.study.settings.load import read_recipe
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.loop import RunOptions, StepReport, train_segment
from biphasic.training.memory import tune_allocator

BASELINE = "adamw"
LICENSES = ("CC-BY-4.0", "CC0-1.0", "public domain")  # beginnings
MAX_TOKENS = 10_000_000
VOCAB_SIZE = 8_192
MODEL = "pico"
# The corpus and its tokenizer, as `prepare` builds them.
CORPUS = "c8d9c3280522a43f2381cc15e2abbf08e9626f2cbbfc3c68461b77a7a8045901"
TOKENIZER = "39672c6179cfd6071f62dfc1a692819cf8fae59152c294df7824f52d9e7d98a1"
PAIRS_PER_PARADIGM = 100
LEVEL = 0.01
FOLDER = Path(__file__).resolve().parent / "speedrun"


@dataclass(frozen=True)
class Record:
    """One run of an entry.

    Attributes:
        entry: Name of the recipe's file.
        tokens: Read in training, each time that they are read.
        cpu_seconds: Of training, from the model's creation to the last update.
        mlm_loss: Held-out loss of masked tokens at 40 %, in nats.
        blimp: Accuracy on the sample of BLiMP, a share.
    """

    entry: str
    seed: int
    steps: int
    tokens: int
    cpu_seconds: float
    mlm_loss: float
    blimp: float
    state: str
    corpus: str
    tokenizer: str
    products: str | None
    machine: dict[str, object]


def prepare(data: Path, folder: Path) -> None:
    """Build the corpus and lay out BLiMP."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.jsonl"
    if not text.exists():
        partial = folder / ".text.partial"
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(allowed_lines(sorted((data / "pretrain").glob("*.jsonl.gz"))))
        partial.replace(text)
    config = CorpusConfig.model_validate(
        {
            "sources": [{"source": str(text)}],
            "vocab_size": VOCAB_SIZE,
            "max_tokens": MAX_TOKENS,
        }
    )
    build_corpus(config, folder / "corpus", say=print)
    pairs = (data / "minimal_pairs" / "blimp.jsonl.gz").resolve()
    task = {"kind": "mp", "test": str(pairs), "pairs_per_paradigm": PAIRS_PER_PARADIGM}
    (folder / "blimp.yaml").write_text(json.dumps(task) + "\n", encoding="utf-8")  # JSON is YAML
    training_data(folder)


def allowed_lines(files: Iterable[Path]) -> Iterator[str]:
    """Yield the JSON lines of documents with an allowed licence, in file order."""
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                if json.loads(line)["license"].startswith(LICENSES):
                    yield line


def training_data(folder: Path) -> TrainingData:
    """Open the corpus that `prepare` built, and check that it is the fixed one."""
    folders = CorpusFolders.below(folder / "corpus")
    data = TrainingData(
        Corpus(folders.train), Corpus(folders.heldout), TextTokenizer.load(folders.tokenizer)
    )
    found = data.corpus.content_hash, data.tokenizer.sha256
    if found != (CORPUS, TOKENIZER):
        raise SystemExit(f"{folder}: this is not the text of the speedrun; its hashes are {found}")
    return data


class StepClock:
    """Tokens and CPU seconds of each step, kept in a file so that a run may be interrupted."""

    def __init__(self, file: Path) -> None:
        """Read what an interrupted run has written, and start the clock."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._steps = file, {}
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            step, *cost = json.loads(line)
            self._steps[step] = cost
        self._before = time.process_time()

    def count(self, report: StepReport) -> None:
        """Count a step; one that is done again after an interruption replaces the first."""
        now = time.process_time()
        self._steps[report.step] = cost = [report.tokens, now - self._before]
        self._before = now
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.step, *cost]) + "\n")

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return sum(tokens for tokens, _ in self._steps.values())

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all steps."""
        return sum(seconds for _, seconds in self._steps.values())


def run(entry: Path, seed: int, folder: Path) -> Record:
    """Train an entry with a seed, and judge it."""
    tune_allocator()
    data = training_data(folder)
    seeds = [f"seeds.{name}={seed}" for name in ("init_seed", "data_seed", "mask_seed")]
    recipe = read_recipe(entry, seeds)
    if recipe.model != MODEL:
        raise SystemExit(f"{entry}: the model is {MODEL}, for all entries")
    store = folder / "store" / f"{entry.stem}-{seed}"
    clock = StepClock(store / "steps.jsonl")
    state = train_segment(
        Lineage(recipe, data.fingerprint),
        data,
        store,
        start=0,
        end=recipe.total_steps,
        options=RunOptions(heldout_every=0, heldout_objectives=("mlm",), report=clock.count),
    )
    judged = evaluate(
        state, folder / "blimp.yaml", root=folder / "evaluation",
        protocol={"reading": "mlm", "precision": "fp32"},
    )  # fmt: skip
    test = judged.results[0].test
    assert test is not None
    trained = read_json(state / "state.json")
    return Record(
        entry=entry.stem,
        seed=seed,
        steps=recipe.total_steps,
        tokens=clock.tokens,
        cpu_seconds=round(clock.cpu_seconds, 3),
        mlm_loss=trained["heldout"]["mlm"],
        blimp=test["accuracy"],
        state=trained["identity"],
        corpus=data.corpus.content_hash,
        tokenizer=data.tokenizer.sha256,
        products=trained["environment"].get("products"),
        machine=machine(),
    )


def run_all(entries: Sequence[Path], seeds: Sequence[int], folder: Path, records: Path) -> None:
    """Run what has no record yet: all entries with one seed, then with the next."""
    records.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for entry in entries:
            target = records / f"{entry.stem}-{seed}.json"
            if target.exists():
                continue
            record = run(entry, seed, folder)
            text = json.dumps(asdict(record), indent=2) + "\n"
            partial = target.with_suffix(".partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
            print(f"{entry.stem} {seed}: {record.mlm_loss:.4f} nats, BLiMP {record.blimp:.4f}, "
                  f"{record.tokens:,} tokens, {record.cpu_seconds} CPU s", flush=True)  # fmt: skip


def read_records(folder: Path) -> dict[str, list[Record]]:
    """Return the records by entry, the baseline first; all are of the fixed corpus."""
    found: dict[str, list[Record]] = {BASELINE: []}
    for path in sorted(folder.glob("*.json")):
        record = Record(**json.loads(path.read_text(encoding="utf-8")))
        if (record.corpus, record.tokenizer) != (CORPUS, TOKENIZER):
            raise SystemExit(f"{path}: not trained on the text of the speedrun")
        found.setdefault(record.entry, []).append(record)
    return found


def p_value(values: Sequence[float], target: float, *, is_below: bool) -> float:
    """Return the p value, over seeds, that the mean is beyond a target; 1 with less than 3."""
    if len(values) < 3:
        return 1.0
    side = "less" if is_below else "greater"
    result: Any = ttest_1samp(values, target, alternative=side)
    return float(result.pvalue)


def table(records: dict[str, list[Record]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of all entries."""
    baseline = records[BASELINE]
    loss = min(record.mlm_loss for record in baseline)
    blimp = max(record.blimp for record in baseline)
    tokens = fmean(record.tokens for record in baseline)
    yield f"Targets: {loss:.4f} nats, BLiMP {100 * blimp:.2f}"
    yield ""
    yield "| entry | seeds | steps | tokens | CPU s | MLM loss | p | BLiMP | p | reached |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, runs in records.items():
        losses, pairs = [r.mlm_loss for r in runs], [r.blimp for r in runs]
        p_loss = p_value(losses, loss, is_below=True)
        p_blimp = p_value(pairs, blimp, is_below=False)
        read, taken = fmean(r.tokens for r in runs), fmean(r.cpu_seconds for r in runs)
        processors = {processor(r) for r in runs}
        beside = [r.cpu_seconds for r in baseline if processor(r) in processors]
        cost = f"{taken:.0f} ({taken / fmean(beside):.2f})" if beside else f"{taken:.0f}"
        if name == BASELINE:
            tests = ["", "", "baseline"]
        else:
            is_reached = max(p_loss, p_blimp) < LEVEL
            tests = [f"{p_loss:.4f}", f"{p_blimp:.4f}", "yes" if is_reached else "no"]
        yield (
            f"| {name} | {len(runs)} | {runs[0].steps:,} "
            f"| {read / 1e6:.2f} M ({read / tokens:.2f}) | {cost} "
            f"| {spread(losses, 3)} | {tests[0]} | {spread([100 * p for p in pairs], 2)} "
            f"| {tests[1]} | {tests[2]} |"
        )


def processor(record: Record) -> object:
    """Return the processor of a run: CPU seconds are compared only on the same one."""
    return record.machine["processor"]


def spread(values: Sequence[float], digits: int) -> str:
    """Return mean and standard deviation over seeds."""
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare", help="build the fixed corpus")
    first.add_argument("data", type=Path, help="with pretrain/*.jsonl.gz and minimal_pairs/")
    first.add_argument("folder", type=Path)
    second = commands.add_parser("run", help="train and judge entries; finished runs are skipped")
    second.add_argument("folder", type=Path, help="that `prepare` wrote")
    second.add_argument("entries", type=Path, nargs="+", help="recipes")
    second.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    third = commands.add_parser("table", help="test records against the baseline")
    for parser_ in (second, third):
        parser_.add_argument("--records", type=Path, default=FOLDER / "records")
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.data, options.folder)
    elif options.command == "run":
        run_all(options.entries, options.seeds, options.folder, options.records)
    else:
        print("\n".join(table(read_records(options.records))))


if __name__ == "__main__":
    main()
