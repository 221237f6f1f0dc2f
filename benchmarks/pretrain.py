"""Real tokens per second of our pretraining step against Hugging Face Trainer with padding.

Same dimensions, text, chunks, precision, optimizer and threads; a batch holds the same number of
real tokens. Each measurement is a process of its own, so that neither side inherits the other's
memory. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from biphasic.data.corpus import Corpus, write_corpus
from biphasic.data.pydocs import load_documents
from biphasic.data.rows import RowPlan, RowReader
from biphasic.data.tokenizer import TextTokenizer, train_tokenizer, write_tokenizer
from biphasic.training.ledger import step_flops
from biphasic.training.loop import RunOptions, StepReport, TrainingData, model_config, train_segment
from biphasic.training.memory import release_excess, tune_allocator
from biphasic.training.recipe import Lineage, Recipe

MAX_SEQLEN = 256
ROWS_PER_STEP = 8
MLM_PROBABILITY = 0.4
VOCAB_SIZE = 8192
CORPUS_CHARACTERS = 6_000_000
WARMUP_STEPS = 5
LEARNING_RATE = 1e-3
MATRIX_SIZE = 2048
TRAINER_BATCHES = 100

OBJECTIVES = ("clm", "mlm")
PRECISIONS = ("bf16", "fp32")
# "trainer-tuned" is Trainer with our allocator settings: what is left is not the allocator's.
SIDES = ("ours", "trainer", "trainer-tuned")


class _Enough(Exception):  # noqa: N818  # ends a run on purpose
    """The measuring time is over."""


class Clock:
    """Counts tokens and seconds from the end of the warm-up until the time is over."""

    def __init__(self, seconds: float) -> None:
        """Measure for `seconds` after the warm-up."""
        self.seconds, self.steps, self.tokens = seconds, 0, 0
        self._began = self._cpu_began = 0.0

    def step(self, tokens: int) -> bool:
        """Count one step; returns whether the time is over."""
        self.steps += 1
        if self.steps == WARMUP_STEPS:
            self._began, self._cpu_began = time.perf_counter(), time.process_time()
        elif self.steps > WARMUP_STEPS:
            self.tokens += tokens
        return self.steps > WARMUP_STEPS and time.perf_counter() - self._began >= self.seconds

    def result(self) -> dict[str, float]:
        """Return the rates."""
        return {
            "tokens_per_second": self.tokens / (time.perf_counter() - self._began),
            "tokens_per_cpu_second": self.tokens / (time.process_time() - self._cpu_began),
            "steps": self.steps - WARMUP_STEPS,
        }


def prepare(folder: Path) -> None:
    """Write a tokenizer and a corpus from the built-in documentation."""
    texts: list[tuple[str, str]] = []
    sizes = itertools.count()
    total = 0
    documents = [document for document in load_documents() if document.split == "train"]
    # Every n-th document, so that all libraries take part.
    stride = max(1, sum(len(document.text) for document in documents) // CORPUS_CHARACTERS)
    for document in documents[::stride]:
        total += len(document.text)
        texts.append((f"{next(sizes)}", document.text))
    tokenizer = train_tokenizer((text for _, text in texts), vocab_size=VOCAB_SIZE)
    write_tokenizer(tokenizer, folder / "tokenizer")
    write_corpus(folder / "corpus", texts, tokenizer, provenance={"characters": total})


def recipe_for(preset: str, objective: str, precision: str) -> Recipe:
    """Return the recipe that our side trains; long enough never to end by itself."""
    phase: dict[str, Any] = {"objective": objective, "steps": 2_000}
    if objective == "mlm":
        phase["mlm_probability"] = MLM_PROBABILITY
    return Recipe.model_validate(
        {
            "model": preset,
            "phases": [phase],
            "learning_rate": {"peak": LEARNING_RATE},
            "max_seqlen": MAX_SEQLEN,
            "rows_per_step": ROWS_PER_STEP,
            "precision": precision,
        }
    )


def training_data(folder: Path) -> TrainingData:
    """Open what `prepare` wrote."""
    corpus = Corpus(folder / "corpus")
    return TrainingData(corpus, corpus, TextTokenizer.load(folder / "tokenizer"))


def row_reader(data: TrainingData, recipe: Recipe) -> RowReader:
    """Return the reader of rows, as the training loop makes it."""
    plan = RowPlan(data.corpus.lengths, recipe.legs, data_seed=recipe.seeds.data_seed)
    return RowReader(data.corpus, plan, data.tokenizer.special_ids)


def measure_ours(options: argparse.Namespace) -> dict[str, float]:
    """Run our training loop as it is: reading, masking, step, metrics."""
    tune_allocator()
    data = training_data(options.data)
    recipe = recipe_for(options.preset, options.objective, options.precision)
    clock = Clock(options.seconds)

    def report(step: StepReport) -> None:
        if clock.step(step.tokens):
            raise _Enough

    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as store:
        try:
            train_segment(
                Lineage(recipe, data.ground),
                data,
                Path(store),
                start=0,
                end=recipe.total_steps,
                options=RunOptions(checkpoint_every=0, report=report),
            )
        except _Enough:
            result = clock.result()
    assert result, "the recipe ended before the time was over"
    batch = row_reader(data, recipe).batch(0)
    phase = recipe.phases[0]
    supervision = phase.supervise(batch, data.vocabulary, mask_seed=0)
    flops = step_flops(
        recipe.architecture,
        vocab_size=VOCAB_SIZE,
        batch=batch,
        supervised_tokens=len(supervision.labels),
        causal=phase.causal,
    )
    return {**result, "flops_per_token": flops / batch.packed.num_tokens}


def trainer_model(options: argparse.Namespace, data: TrainingData) -> Any:
    """Return transformers' own model of the same dimensions, with its own attention.

    EuroBERT is Llama's architecture without the causal mask; transformers has no causal EuroBERT.
    """
    config = model_config(recipe_for(options.preset, options.objective, "fp32"), data.tokenizer)
    assert isinstance(config, transformers.EuroBertConfig)
    if options.objective == "mlm":
        return transformers.EuroBertForMaskedLM(config)
    shared = {k: v for k, v in config.to_dict().items() if k not in ("model_type", "architectures")}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared))


class CountingCollator:
    """DataCollatorForLanguageModeling that remembers the real tokens of each batch."""

    def __init__(self, tokenizer: Any, *, objective: str) -> None:
        """Mask as the study does: every selected token is replaced by the mask token."""
        is_mlm = objective == "mlm"
        self._collate = transformers.DataCollatorForLanguageModeling(
            tokenizer,
            mlm=is_mlm,
            mlm_probability=MLM_PROBABILITY if is_mlm else None,
            mask_replace_prob=1.0,
            random_replace_prob=0.0,
        )
        self.tokens: list[int] = []

    def __call__(self, features: list[dict[str, list[int]]]) -> Any:
        """Pad, mask and count."""
        self.tokens.append(sum(len(feature["input_ids"]) for feature in features))
        return self._collate(features)


class Watch(transformers.TrainerCallback):
    """Stops Trainer when the time is over."""

    def __init__(self, clock: Clock, collator: CountingCollator, *, is_tuned: bool) -> None:
        """Count what `collator` saw."""
        self._clock, self._collator, self._is_tuned = clock, collator, is_tuned
        self.result: dict[str, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count one step."""
        del args
        if self._is_tuned:
            release_excess()
        if self._clock.step(self._collator.tokens[state.global_step - 1]):
            self.result = self._clock.result()
            control.should_training_stop = True


def chunks_of(data: TrainingData, recipe: Recipe) -> tuple[list[dict[str, list[int]]], int]:
    """Return the sequences that our rows hold, and how many make one of our batches."""
    reader = row_reader(data, recipe)
    batches = [reader.batch(step).packed for step in range(TRAINER_BATCHES)]
    chunks = [
        {"input_ids": batch.input_ids.reshape(-1)[start:end].tolist()}
        for batch in batches
        for start, end in batch.spans.tolist()
    ]
    return chunks, round(len(chunks) / len(batches))


def measure_trainer(options: argparse.Namespace) -> dict[str, float]:
    """Run Trainer on the same sequences, one to a row, padded to the longest of the batch."""
    is_tuned = options.side == "trainer-tuned" and tune_allocator() is not None
    data = training_data(options.data)
    recipe = recipe_for(options.preset, options.objective, options.precision)
    chunks, num_rows = chunks_of(data, recipe)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.data / "tokenizer")
    collator = CountingCollator(tokenizer, objective=options.objective)
    watch = Watch(Clock(options.seconds), collator, is_tuned=is_tuned)
    with tempfile.TemporaryDirectory() as output:
        arguments = transformers.TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=num_rows,
            max_steps=100_000,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=recipe.optimizer.weight_decay,
            adam_beta2=recipe.optimizer.beta2,
            adam_epsilon=recipe.optimizer.epsilon,
            max_grad_norm=recipe.optimizer.clip_norm,
            bf16=options.precision == "bf16",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        transformers.Trainer(
            model=trainer_model(options, data),
            args=arguments,
            train_dataset=chunks,  # type: ignore[arg-type]
            data_collator=collator,
            callbacks=[watch],
        ).train()
    return {**watch.result, "rows_per_batch": num_rows}


def measure_ceiling(options: argparse.Namespace) -> dict[str, float]:
    """Return the best rate of a large matrix product, in FLOP per second."""
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    left = torch.randn(MATRIX_SIZE, MATRIX_SIZE).to(dtype)
    right = torch.randn(MATRIX_SIZE, MATRIX_SIZE).to(dtype)
    out = torch.empty_like(left)
    best = float("inf")
    ends = time.perf_counter() + options.seconds / 4
    while time.perf_counter() < ends:
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        best = min(best, time.perf_counter() - began)
    return {"flops_per_second": 2 * MATRIX_SIZE**3 / best}


def work(options: argparse.Namespace) -> None:
    """Do one measurement and print it as the last line."""
    torch.set_num_threads(options.threads)
    measure = {"ours": measure_ours, "ceiling": measure_ceiling}.get(options.side, measure_trainer)
    print(json.dumps(measure(options)))


def in_own_process(options: argparse.Namespace, **settings: str) -> dict[str, float]:
    """Measure in a fresh process."""
    command = [sys.executable, __file__]
    merged = {**vars(options), **settings}
    for name in ("side", "objective", "precision", "data", "seconds", "threads", "preset"):
        command += [f"--{name}", str(merged[name])]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def median_of(results: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each number over rounds."""
    return {name: statistics.median(result[name] for result in results) for name in results[0]}


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all sides, print a line for each, and return the records."""
    records: list[dict[str, Any]] = []
    for precision in options.precisions:
        ceiling = in_own_process(options, side="ceiling", precision=precision)["flops_per_second"]
        print(f"{precision} ceiling: {ceiling / 1e9:,.0f} GFLOP/s in matrix products", flush=True)
        for objective in options.objectives:
            rounds: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
            for _ in range(options.rounds):  # interleaved: a slow minute hits all sides
                for side, results in rounds.items():
                    settings = {"side": side, "objective": objective, "precision": precision}
                    results.append(in_own_process(options, **settings))
            medians = {side: median_of(results) for side, results in rounds.items()}
            ours = medians["ours"]
            for side, numbers in medians.items():
                rate = numbers["tokens_per_second"]
                record = {
                    "precision": precision,
                    "objective": objective,
                    "side": side,
                    **numbers,
                    "ours_over_this": ours["tokens_per_second"] / rate,
                    "ours_over_this_per_cpu_second": ours["tokens_per_cpu_second"]
                    / numbers["tokens_per_cpu_second"],
                    "share_of_ceiling": rate * ours["flops_per_token"] / ceiling,
                    "ceiling_flops_per_second": ceiling,
                }
                records.append(record)
                print(
                    f"{precision} {objective} {side:13} {rate:8,.0f} tokens/s  "
                    f"ours is {record['ours_over_this']:.2f}x "
                    f"({record['ours_over_this_per_cpu_second']:.2f}x per CPU second)  "
                    f"{record['share_of_ceiling']:.1%} of the ceiling",
                    flush=True,
                )
    return records


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="nano", help="model size")
    parser.add_argument("--threads", type=int, default=1, help="of each measurement")
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=1, help="the median is reported")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=OBJECTIVES)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/pretrain.json"))
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=(*SIDES, "ceiling"), help=argparse.SUPPRESS)
    parser.add_argument("--objective", default="mlm", help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="bf16", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        work(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        options.data = Path(folder)
        prepare(options.data)
        records = compare(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
