"""CPU time of a step on pairs against sentence-transformers' trainer, alternating in one process.

Both sides train the same weights on the same pairs in the same order, with AdamW, in fp32, each in
its own loop as it is: reading, tokenising, forward and backward pass, clipping, update. A thread
runs each loop, and hands over to the other after every step, so that both meet the same processor
and neighbours. Reported are the medians over steps of pairs per CPU second and of their ratio.

Batches of `--cached` pairs or more are computed in passes: ours with `max_tokens_per_pass`, the
other side with CachedMultipleNegativesRankingLoss.

`--memory` instead reports the most memory of our step, above that of a step of four pairs, with an
allocator that gives freed memory back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import transformers
from datasets import Dataset
from finetune import packaged_model
from harness import command_line, measured, write_records
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from setup_pretraining import prepare, print_numbers, train_until
from torch.utils.data import BatchSampler, SequentialSampler

from biphasic.data.corpus import Corpus
from biphasic.data.pairs import Pairs, write_pairs
from biphasic.data.text.source import SourceContext
from biphasic.data.text.sources import SourceConfig, read_documents
from biphasic.data.tokens.tokenizer import TextTokenizer
from biphasic.model.loading.build import architecture_config
from biphasic.model.loading.hub import fetch_model
from biphasic.model.shape import PRESETS
from biphasic.tasks.pairs import document_pairs
from biphasic.training import loop
from biphasic.training.compute import ComputeConfig
from biphasic.training.lineage import TrainingData
from biphasic.training.memory import tune_allocator
from biphasic.training.recipe import Recipe
from biphasic.training.step.input import StepRows
from biphasic.training.step.pending import StepReport

MODELS = ("minilm", "pico", "nano")
LIBRARIES = ("numpy", "scipy", "torch")
VOCABULARY = 8_192
LEARNING_RATE = 1e-5
TEMPERATURE = 0.05
PAIRS_PER_PASS = 64  # the other side's default is 32
# For glibc, which then gives freed tensors back: the peak is what tensors need.
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True)
class Setting:
    """What a process is to measure; `data` is the folder that `write_data` wrote."""

    data: str
    model: str
    batch: int
    steps: int
    max_seqlen: int
    is_cached: bool
    warmup: int = 1

    @property
    def model_folder(self) -> Path:
        """Folder of the weights with which both sides begin."""
        return Path(self.data) / self.model

    @property
    def num_steps(self) -> int:
        """Steps of each side, with its warm-up."""
        return self.steps + self.warmup

    @property
    def recipe(self) -> Recipe:
        """What our side trains; one step longer than is measured, so that it saves no state."""
        phase = {
            "objective": "contrastive",
            "pairs": str(self.pairs.folder),
            "batch": self.batch,
            "steps": self.num_steps + 1,
            "temperature": TEMPERATURE,
        }
        return Recipe.model_validate(
            {
                "model": {"pretrained": str(self.model_folder)},
                "phases": [phase],
                "learning_rate": {"peak": LEARNING_RATE},
                "max_seqlen": self.max_seqlen,
                "precision": "fp32",
            }
        )

    @property
    def pairs(self) -> Pairs:
        """The pairs of both sides."""
        return Pairs(Path(self.data) / "pairs")

    def training_data(self) -> TrainingData:
        """Open our side's data; no step reads the corpus."""
        pairs, corpus = self.pairs, Corpus(Path(self.data) / "corpus")
        return TrainingData(
            corpus,
            corpus,
            TextTokenizer.load(self.model_folder),
            pretrained=fetch_model(self.model_folder),
            pairs={pairs.folder: pairs},
        )


def write_data(folder: Path, models: list[str], most_pairs: int) -> None:
    """Write weak pairs of the documentation of libraries, and new models with their tokenizers."""
    prepare(folder, [VOCABULARY], libraries=LIBRARIES)
    documents = read_documents(SourceConfig(source="builtin:pydocs"), SourceContext(LIBRARIES))
    weak = document_pairs(documents, seed=0, per_document=4, most=most_pairs)
    write_pairs(folder / "pairs", weak, origin={})
    for name in models:
        model, tokenizer = new_model(name, folder)
        model.save_pretrained(folder / name)
        tokenizer.save_with_model(folder / name)


def new_model(name: str, data: Path) -> tuple[transformers.PreTrainedModel, TextTokenizer]:
    """Return a model with random weights; that of MiniLM's shape has MiniLM's tokenizer."""
    if name == "minilm":
        source = packaged_model()
        # Our side has no dropout, so neither may the other.
        config = transformers.BertConfig.from_pretrained(
            source, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        return transformers.BertForMaskedLM(config), TextTokenizer.load(source)
    tokenizer = TextTokenizer.load(data / f"tokenizer-{VOCABULARY}")
    config = architecture_config(
        PRESETS[name], vocab_size=VOCABULARY, max_seqlen=512, special_ids=tokenizer.special_ids
    )
    return transformers.EuroBertForMaskedLM(config), tokenizer


class _Enough(Exception):  # noqa: N818  # ends a run on purpose
    """The other side has failed."""


class Turns:
    """Lets one of two threads run at a time, and measures the CPU seconds of its turns."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        self._locks = {side: threading.Semaphore(0) for side in self.seconds}
        self._began = 0.0
        self._failures: list[BaseException] = []

    def wait(self, side: str) -> None:
        """Wait until it is this side's turn, or end this side as the other has failed."""
        self._locks[side].acquire()
        if self._failures:
            raise _Enough
        self._began = time.process_time()

    def end(self, side: str) -> None:
        """End a turn, and let the other side begin its own."""
        self.seconds[side].append(time.process_time() - self._began)
        self._locks["theirs" if side == "ours" else "ours"].release()

    def run(self, sides: dict[str, Callable[[], None]]) -> None:
        """Run both sides; the first failure of a side is raised here."""

        def guarded(side: str) -> None:
            try:
                self.wait(side)
                sides[side]()
            except BaseException as error:  # noqa: BLE001 - raised below
                self._failures.append(error)
            self._locks["theirs" if side == "ours" else "ours"].release()

        threads = [threading.Thread(target=guarded, args=(side,)) for side in sides]
        for thread in threads:
            thread.start()
        self._locks["ours"].release()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]


def train_ours(setting: Setting, turns: Turns, losses: list[float]) -> None:
    """Run our loop as it is."""
    tokens = PAIRS_PER_PASS * setting.max_seqlen if setting.is_cached else None

    def has_enough(step: StepReport) -> bool:
        losses.append(step.loss)
        turns.end("ours")
        if step.step == setting.num_steps:
            return True
        turns.wait("ours")
        return False

    train_until(setting, has_enough, compute=ComputeConfig(max_tokens_per_pass=tokens))


def in_order(rows: Dataset, *, batch_size: int, **_: Any) -> BatchSampler:
    """Return batches in the order of the data."""
    return BatchSampler(SequentialSampler(rows), batch_size, drop_last=False)  # type: ignore[arg-type]


def train_theirs(setting: Setting, turns: Turns, losses: list[float]) -> None:
    """Run sentence-transformers' trainer as it is, on the pairs of our steps."""
    model = SentenceTransformer(str(setting.model_folder), device="cpu")
    model.max_seq_length = setting.max_seqlen
    if setting.is_cached:
        loss: Any = CachedMultipleNegativesRankingLoss(
            model, scale=1 / TEMPERATURE, mini_batch_size=PAIRS_PER_PASS
        )
    else:
        loss = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)

    class Watch(transformers.TrainerCallback):
        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            losses.extend(value for name, value in logs.items() if name == "loss")

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            turns.end("theirs")
            if state.global_step < setting.num_steps:
                turns.wait("theirs")

    recipe = setting.recipe
    with tempfile.TemporaryDirectory() as output:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=output,
            per_device_train_batch_size=setting.batch,
            max_steps=setting.num_steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            weight_decay=recipe.optimizer.weight_decay,
            max_grad_norm=1.0,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            batch_sampler=in_order,  # type: ignore[arg-type]
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=rows_of(setting),
            loss=loss,
            callbacks=[Watch()],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def rows_of(setting: Setting) -> Dataset:
    """Return the pairs of our steps, in order."""
    rows, pairs = StepRows(setting.recipe, setting.training_data()), setting.pairs
    columns: dict[str, list[str]] = {"anchor": [], "positive": []}
    for step in range(setting.num_steps):
        batch = rows.batch(step)
        queries, positives = batch.pairs.T  # type: ignore[attr-defined]
        columns["anchor"] += pairs.texts(batch.queries[queries])  # type: ignore[attr-defined]
        columns["positive"] += pairs.texts(batch.documents[positives])  # type: ignore[attr-defined]
    return Dataset.from_dict(columns)


def measure(setting: Setting) -> dict[str, float]:
    """Alternate both sides in this process."""
    tune_allocator()
    turns = Turns()
    losses: dict[str, list[float]] = {"ours": [], "theirs": []}
    sides = {"ours": train_ours, "theirs": train_theirs}
    turns.run({side: (lambda s=side: sides[s](setting, turns, losses[s])) for side in sides})
    ours, theirs = (turns.seconds[side][setting.warmup :] for side in sides)
    return {
        "our_pairs_per_cpu_second": setting.batch / statistics.median(ours),
        "their_pairs_per_cpu_second": setting.batch / statistics.median(theirs),
        "ours_over_theirs": statistics.median(t / o for t, o in zip(theirs, ours, strict=True)),
        "our_first_loss": losses["ours"][0],
        "their_first_loss": losses["theirs"][0],
    }


def measure_memory(setting: Setting) -> dict[str, float]:
    """Return the peak of resident memory of a step of ours, less what is resident before it."""
    process = psutil.Process()
    tokens = PAIRS_PER_PASS * setting.max_seqlen if setting.is_cached else None
    # It would tune the allocator.
    with mock.patch.object(loop, "release_excess", return_value=0):
        train_until(replace(setting, batch=4), lambda _: True, compute=ComputeConfig())
        before = process.memory_info().rss
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # peak = now
        train_until(setting, lambda _: True, compute=ComputeConfig(max_tokens_per_pass=tokens))
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return {"step_bytes": peak - before}


def print_memory(setting: Setting) -> dict[str, float]:
    """Measure memory in a fresh process, and print it."""
    call = [__file__, "--measure", json.dumps(asdict(setting)), "--memory"]
    numbers = measured(call, threads=1, settings=RETURNED)[0]
    passes = "passes" if setting.is_cached else "one pass"
    mib = numbers["step_bytes"] / 2**20
    print(f"{setting.model:6} batch {setting.batch:5,} in {passes}: {mib:,.0f} MiB", flush=True)
    return numbers


def print_speed(setting: Setting) -> dict[str, float]:
    """Measure both sides in a fresh process, and print their speed."""
    numbers = measured([__file__, "--measure", json.dumps(asdict(setting))], threads=1)[0]
    ours, theirs = (numbers[f"{side}_pairs_per_cpu_second"] for side in ("our", "their"))
    print(
        f"{setting.model:6} batch {setting.batch:5,} ours {ours:.1f}, theirs {theirs:.1f} pairs "
        f"a CPU s: {numbers['ours_over_theirs']:.2f} times as fast",
        flush=True,
    )
    return numbers


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "contrastive")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["minilm", "nano"])
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128, 1024])
    parser.add_argument("--cached", type=int, default=256, help="least pairs that take passes")
    parser.add_argument("--steps", type=int, default=6, help="that are measured")
    parser.add_argument("--warmup", type=int, default=1, help="steps before these")
    parser.add_argument("--max-seqlen", type=int, default=128)
    parser.add_argument("--memory", action="store_true", help="memory of our step, not speed")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what = measure_memory if options.memory else measure
        print_numbers(what(Setting(**json.loads(options.measure))))
        return
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as data:
        most = max(options.batches) * (options.steps + options.warmup)
        write_data(Path(data), options.models, most)
        for model in options.models:
            for batch in options.batches:
                setting = Setting(
                    data,
                    model,
                    batch,
                    options.steps,
                    options.max_seqlen,
                    is_cached=batch >= options.cached,
                    warmup=options.warmup,
                )
                numbers = (print_memory if options.memory else print_speed)(setting)
                named = {name: value for name, value in asdict(setting).items() if name != "data"}
                records.append({**named, **numbers})
    write_records(options.json, records)


if __name__ == "__main__":
    main()
