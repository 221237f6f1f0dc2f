"""What the benchmarks of pretraining share: text, recipes, the clock, and our side.

The text is a sample of `builtin:pydocs`. A vocabulary larger than that text can teach is the
trained one with entries added that no text contains: embedding, head and optimizer are as large as
they would be, and the tokens of the rows stay the same, so that rates per token can be compared.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from harness import measured

from biphasic.data.corpus import Corpus, assemble_corpus
from biphasic.data.tokens.shards import Block, read_shard, token_dtype, write_shard
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.model.shape import Architecture
from biphasic.pydocs.documents import load_documents
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.loop import RunOptions, train_segment
from biphasic.training.memory import tune_allocator
from biphasic.training.recipe import Recipe
from biphasic.training.step.pending import StepReport

CORPUS_CHARACTERS = 6_000_000
TRAINED_VOCABULARY = 8_192
LEARNING_RATE = 1e-3
ENDLESS_STEPS = 20_000
WARMUP_STEPS = 2
WARMUP_SHARE = 0.2
MEASURED_STEPS = 3

MODELS: dict[str, str | Architecture] = {
    "pico": "pico",
    "nano": "nano",
    "micro": "micro",
    # 25.2 million parameters beside embeddings and head.
    "25m": Architecture(
        num_layers=8, hidden_size=512, intermediate_size=1536, num_heads=8, num_key_value_heads=4
    ),
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "clm": {"objective": "clm"},
    "mlm20": {"objective": "mlm", "mlm_probability": 0.2},
    "mlm40": {"objective": "mlm", "mlm_probability": 0.4},
}
PRECISIONS = ("bf16", "fp32")


@dataclass(frozen=True)
class Setting:
    """What a process is to measure.

    Attributes:
        data: The folder that `prepare` wrote.
        model: Key of `MODELS`.
        vocabulary: Entries of embedding and head.
        objective: Key of `OBJECTIVES`.
        precision: Of the computation.
        seconds: To measure for, after the warm-up.
        max_seqlen: Capacity of a row, in tokens.
        rows_per_step: Rows of our batch.
        optimizer: Name of our optimizer.
    """

    data: str
    model: str
    vocabulary: int
    objective: str
    precision: str
    seconds: float
    max_seqlen: int = 256
    rows_per_step: int = 8
    optimizer: str = "adamw"

    def dump(self) -> str:
        """Return it as an argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> Setting:
        """Read what `dump` returned."""
        return cls(**json.loads(argument))

    def described(self) -> dict[str, Any]:
        """Return it for a record, without the folder."""
        return {name: value for name, value in asdict(self).items() if name != "data"}

    @property
    def is_mlm(self) -> bool:
        """Whether tokens are masked."""
        return OBJECTIVES[self.objective]["objective"] == "mlm"

    @property
    def recipe(self) -> Recipe:
        """What our side trains; long enough never to end by itself."""
        return Recipe.model_validate(
            {
                "model": MODELS[self.model],
                "phases": [{**OBJECTIVES[self.objective], "steps": ENDLESS_STEPS}],
                "learning_rate": {"peak": LEARNING_RATE},
                "optimizer": {"name": self.optimizer},
                "max_seqlen": self.max_seqlen,
                "rows_per_step": self.rows_per_step,
                "precision": self.precision,
            }
        )

    @property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizer of this vocabulary is."""
        return Path(self.data) / f"tokenizer-{self.vocabulary}"

    def training_data(self) -> TrainingData:
        """Open what `prepare` wrote."""
        corpus = Corpus(Path(self.data) / "corpus")
        return TrainingData(corpus, corpus, TextTokenizer.load(self.tokenizer_folder))


def prepare(
    folder: Path, vocabularies: Sequence[int], *, libraries: Collection[str] | None = None
) -> None:
    """Write a corpus, and tokenizers of these sizes that all give the same tokens."""
    documents = [each for each in load_documents(libraries) if each.split == "train"]
    # Every n-th document, so that all libraries take part.
    stride = max(1, sum(len(document.text) for document in documents) // CORPUS_CHARACTERS)
    texts = [(document.id, document.text) for document in documents[::stride]]
    trained = train_tokenizer(
        (text for _, text in texts), vocab_size=min(TRAINED_VOCABULARY, *vocabularies)
    )
    _write_corpus(folder, texts, trained)
    for size in vocabularies:
        target = folder / f"tokenizer-{size}"
        target.mkdir()
        trained.save(target)
        _enlarge(target / "tokenizer.json", size)


def _write_corpus(folder: Path, texts: list[tuple[str, str]], tokenizer: TextTokenizer) -> None:
    block = Block()
    for name, text in texts:
        block.add(name, text)
    write_shard(folder / "shard", block, tokenizer)
    assemble_corpus(
        folder / "corpus",
        read_shard(folder / "shard"),
        tokenizer_sha256=tokenizer.sha256,
        dtype=token_dtype(tokenizer.vocab_size),
        vocab_size=tokenizer.vocab_size,
        provenance={},
    )


def _enlarge(file: Path, size: int) -> None:
    """Add entries to a tokenizer's vocabulary that no merge leads to, so no text has them."""
    content = json.loads(file.read_text(encoding="utf-8"))
    entries = content["model"]["vocab"]
    entries |= {f"<|unused-{index}|>": index for index in range(len(entries), size)}
    assert len(entries) == size, f"the text gives {len(entries)} entries, not {size}"
    file.write_text(json.dumps(content), encoding="utf-8")


class Clock:
    """Counts tokens and seconds from the end of the warm-up until the time is over.

    The warm-up is at least two steps, and goes on for a fifth of the time after the first. At least
    three steps are measured, however long they take.
    """

    def __init__(self, seconds: float) -> None:
        """Measure for `seconds` after the warm-up."""
        self._seconds = seconds
        self._is_warm = False
        self._steps = self._tokens = 0
        self._began = self._now = (0.0, 0.0)

    def step(self, tokens: int) -> bool:
        """Count a step that is done; returns whether the time is over."""
        self._now = (time.perf_counter(), time.process_time())
        self._steps += 1
        if self._steps == 1 and not self._is_warm:
            self._began = self._now
        seconds = self._now[0] - self._began[0]
        if self._is_warm:
            self._tokens += tokens
            return self._steps >= MEASURED_STEPS and seconds >= self._seconds
        if self._steps >= WARMUP_STEPS and seconds >= WARMUP_SHARE * self._seconds:
            self._is_warm, self._steps, self._began = True, 0, self._now
        return False

    def result(self) -> dict[str, float]:
        """Return the rates."""
        seconds, cpu_seconds = (
            now - then for now, then in zip(self._now, self._began, strict=True)
        )
        return {
            "tokens_per_second": self._tokens / seconds,
            "tokens_per_cpu_second": self._tokens / cpu_seconds,
            "tokens_per_step": self._tokens / self._steps,
            "seconds_per_step": seconds / self._steps,
            "steps": self._steps,
        }


class _Enough(Exception):  # noqa: N818  # ends a run on purpose
    """Its watcher has seen enough."""


class Trained(Protocol):
    """What is trained, and on what."""

    @property
    def recipe(self) -> Recipe: ...

    def training_data(self) -> TrainingData: ...


def train_until(
    setting: Trained,
    has_enough: Callable[[StepReport], bool],
    *,
    checkpoint_every: int = 0,
    compute: ComputeConfig | None = None,
) -> None:
    """Run our training loop as it is: reading, masking, step, metrics.

    Args:
        setting: What to train.
        has_enough: Told of every step; ends the run.
        checkpoint_every: Steps between checkpoints; 0 for none.
        compute: How steps are computed; the defaults when None.
    """
    data, recipe = setting.training_data(), setting.recipe

    def report(step: StepReport) -> None:
        if has_enough(step):
            raise _Enough

    with tempfile.TemporaryDirectory() as store:
        try:
            train_segment(
                Lineage(recipe, data.fingerprint),
                data,
                Path(store),
                start=0,
                end=recipe.total_steps,
                options=RunOptions(
                    checkpoint_every=checkpoint_every,
                    heldout_every=0,
                    report=report,
                    compute=compute or ComputeConfig(),
                ),
            )
        except _Enough:
            return
    raise SystemExit("the recipe ended before its watcher had seen enough")


def measure_ours(setting: Setting) -> dict[str, float]:
    """Measure our training loop.

    Returns:
        The clock's result, and the memory that was taken before training began: by libraries and
        data.
    """
    tune_allocator()
    clock = Clock(setting.seconds)
    setting.training_data()
    set_up_bytes = peak_bytes()
    train_until(setting, lambda step: clock.step(step.tokens))
    return {**clock.result(), "set_up_bytes": set_up_bytes}


def print_numbers(numbers: Mapping[str, float]) -> None:
    """End a measuring process: print what it found, and the most memory it held at once."""
    print(json.dumps({**numbers, "peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """Return the most memory that was resident at once in this process so far.

    Not what a parent learns when its child ends: that counts from before the child's program was
    loaded, so it is never below the parent's own.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def measure_in_turns(
    script: str, jobs: Sequence[Sequence[str]], *, rounds: int, threads: int
) -> list[list[dict[str, float]]]:
    """Run a script once for each job, round after round, so that a slow minute hits all alike.

    Args:
        script: Ends with `print_numbers`.
        jobs: Arguments for it.
        rounds: How often each job is measured.
        threads: Of each process.

    Returns:
        For each job what was printed in each round.
    """
    results: list[list[dict[str, float]]] = [[] for _ in jobs]
    for _ in range(rounds):
        for found, arguments in zip(results, jobs, strict=True):
            found.append(measured([script, *arguments], threads=threads)[0])
    return results


def median_of(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each number over rounds."""
    return {name: statistics.median(result[name] for result in results) for name in results[0]}
