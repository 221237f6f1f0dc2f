"""Real tokens per second of our pretraining step against Hugging Face Trainer, on a CPU.

Same dimensions, text, precision, optimizer and threads; a batch holds the same number of real
tokens. Each measurement is a process of its own, so that no side inherits another's memory. The
peers, with `DataCollatorForLanguageModeling` and the model's own attention:

- trainer-padded: documents cut to `max_seqlen`, one to a row, padded to the longest of the batch;
- trainer-packed: documents end to end, cut into blocks of `max_seqlen`, attention across them;
- each with "-tuned": in a process with our allocator settings, so that what is left is not theirs.

Trainer is set as ours where it decides what is computed: batch size, AdamW's constants, a constant
learning rate, precision. Logging, checkpoints and the progress bar are off. The mask of special
tokens is made beforehand and passed on, as transformers' `run_mlm` means to. The rest is as Trainer
comes. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from harness import command_line, write_records
from setup_pretraining import (
    LEARNING_RATE,
    MODELS,
    OBJECTIVES,
    PRECISIONS,
    Clock,
    Setting,
    measure_in_turns,
    measure_ours,
    median_of,
    prepare,
    print_numbers,
)
from torch import nn

from biphasic.model.cpu.kernels import use_own_layers
from biphasic.model.loading.build import architecture_config
from biphasic.model.shape import architecture_shape
from biphasic.training.lineage import TrainingData
from biphasic.training.memory import release_excess, tune_allocator
from biphasic.training.optimizers.adamw import AdamW
from biphasic.training.step.input import StepRows

VOCABULARIES = (8_192, 131_072)
PEERS = ("trainer-padded", "trainer-padded-tuned", "trainer-packed", "trainer-packed-tuned")
MATRIX_SIZE = 2048
CEILING_SECONDS = 3
COUNTED_BATCHES = 8
TRAINER_BATCHES = 100


def trainer_model(setting: Setting, data: TrainingData) -> Any:
    """Return transformers' own model of the same dimensions, with its own attention.

    EuroBERT is Llama's architecture without the causal mask; transformers has no causal EuroBERT.
    """
    architecture = setting.recipe.architecture
    assert architecture is not None
    # Not the configuration of a model of ours: that one names our attention.
    config = architecture_config(
        architecture,
        vocab_size=data.tokenizer.vocab_size,
        max_seqlen=setting.max_seqlen,
        special_ids=data.tokenizer.special_ids,
    )
    if setting.is_mlm:
        model: Any = transformers.EuroBertForMaskedLM(config)
    else:
        shared = config.to_dict()
        shared = {k: v for k, v in shared.items() if k not in ("model_type", "architectures")}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared))
    assert model.config._attn_implementation == "sdpa"  # what transformers chooses by itself
    return model


def documents(data: TrainingData, num_tokens: int) -> Iterator[list[int]]:
    """Yield whole documents without special tokens, in random order, until there are enough."""
    for document in np.random.default_rng(0).permutation(len(data.corpus)).tolist():
        if num_tokens <= 0:
            return
        tokens = data.corpus.tokens(document, 0, int(data.corpus.lengths[document])).tolist()
        num_tokens -= len(tokens)
        yield tokens


def padded_sequences(setting: Setting, data: TrainingData, num_tokens: int) -> list[list[int]]:
    """Cut documents to sequences of `max_seqlen` at most, each between BOS and EOS, as ours are."""
    bos, eos = data.tokenizer.bos_id, data.tokenizer.eos_id
    room = setting.max_seqlen - 2
    return [
        [bos, *tokens[start : start + room], eos]
        for tokens in documents(data, num_tokens)
        for start in range(0, len(tokens), room)
    ]


def packed_sequences(setting: Setting, data: TrainingData, num_tokens: int) -> list[list[int]]:
    """Lay documents end to end, each between BOS and EOS, and cut blocks of `max_seqlen`.

    What is left at the end is dropped, as in transformers' `run_mlm` and `run_clm`.
    """
    bos, eos = data.tokenizer.bos_id, data.tokenizer.eos_id
    stream = [
        token
        for tokens in documents(data, num_tokens)
        for token in itertools.chain([bos], tokens, [eos])
    ]
    length = setting.max_seqlen
    return [stream[end - length : end] for end in range(length, len(stream) + 1, length)]


class CountingCollator:
    """DataCollatorForLanguageModeling that remembers the real tokens of each batch."""

    def __init__(self, tokenizer: Any, setting: Setting) -> None:
        """Mask as the study does: every selected token is replaced by the mask token."""
        self._collate = transformers.DataCollatorForLanguageModeling(
            tokenizer,
            mlm=setting.is_mlm,
            mlm_probability=OBJECTIVES[setting.objective].get("mlm_probability"),
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

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count one step."""
        del args
        if self._is_tuned:
            release_excess()
        if self._clock.step(self._collator.tokens[state.global_step - 1]):
            control.should_training_stop = True


def measure_trainer(setting: Setting, *, is_packed: bool, is_tuned: bool) -> dict[str, float]:
    """Run Trainer on documents that are padded or packed."""
    if is_tuned:
        tune_allocator()
    data = setting.training_data()
    tokens_per_step = real_tokens_per_step(setting, data)
    make = packed_sequences if is_packed else padded_sequences
    sequences = make(setting, data, TRAINER_BATCHES * round(tokens_per_step))
    rows = round(tokens_per_step / np.mean([len(sequence) for sequence in sequences]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(setting.tokenizer_folder)
    # Known beforehand, as in transformers' examples; else the collator looks every token up.
    special = set(tokenizer.all_special_ids)
    features = [
        {
            "input_ids": sequence,
            "special_tokens_mask": [int(token in special) for token in sequence],
        }
        for sequence in sequences
    ]
    collator = CountingCollator(tokenizer, setting)
    clock = Clock(setting.seconds)
    constants = setting.recipe.optimizer
    assert isinstance(constants, AdamW)
    assert constants.max_gradient_norm is not None
    with tempfile.TemporaryDirectory() as output:
        arguments = transformers.TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=rows,
            max_steps=setting.recipe.total_steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=constants.weight_decay,
            adam_beta1=constants.beta1,
            adam_beta2=constants.beta2,
            adam_epsilon=constants.epsilon,
            max_grad_norm=constants.max_gradient_norm,
            bf16=setting.precision == "bf16",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            remove_unused_columns=False,  # else the collator never sees the mask above
        )
        transformers.Trainer(
            model=trainer_model(setting, data),
            args=arguments,
            train_dataset=features,  # type: ignore[arg-type]
            data_collator=collator,
            callbacks=[Watch(clock, collator, is_tuned=is_tuned)],
        ).train()
    return {**clock.result(), "rows_per_batch": rows}


def measure_ceiling(setting: Setting) -> dict[str, float]:
    """Return the best rate of a large matrix product by any of torch's libraries, in FLOP/s."""
    tune_allocator()
    dtype = torch.bfloat16 if setting.precision == "bf16" else torch.float32
    left, right = (torch.randn(MATRIX_SIZE, MATRIX_SIZE).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    layer = nn.Sequential(nn.Linear(MATRIX_SIZE, MATRIX_SIZE, bias=False, dtype=dtype))
    use_own_layers(layer)
    products: list[Callable[[], object]] = [
        lambda: torch.mm(left, right, out=out),
        lambda: layer(left),
    ]
    best = float("inf")
    ends = time.perf_counter() + CEILING_SECONDS
    with torch.no_grad():
        for product in itertools.cycle(products):
            began = time.perf_counter()
            product()
            ended = time.perf_counter()
            best = min(best, ended - began)
            if ended >= ends:
                break
    return {"flops_per_second": 2 * MATRIX_SIZE**3 / best}


def measure(side: str, setting: Setting) -> dict[str, float]:
    """Measure one side in this process."""
    if side == "ceiling":
        return measure_ceiling(setting)
    if side == "ours":
        return measure_ours(setting)
    return measure_trainer(setting, is_packed="packed" in side, is_tuned="tuned" in side)


def real_tokens_per_step(setting: Setting, data: TrainingData) -> float:
    """Return how many tokens a batch of ours holds on average, padding excluded."""
    reader = StepRows(setting.recipe, data)
    return float(np.mean([reader.batch(step).packed.num_tokens for step in range(COUNTED_BATCHES)]))


def flops_per_token(setting: Setting) -> float:
    """Return the model FLOPs of a real token, as our ledger counts them."""
    data, recipe = setting.training_data(), setting.recipe
    reader, phase = StepRows(recipe, data), recipe.phases[0]
    assert recipe.architecture is not None
    shape = architecture_shape(recipe.architecture, vocab_size=setting.vocabulary)
    flops = num_tokens = 0
    for step in range(COUNTED_BATCHES):
        batch = reader.batch(step)
        num_tokens += batch.packed.num_tokens
        for part in phase.supervise(batch, data.vocabulary, mask_seed=recipe.seeds.mask_seed):
            flops += shape.update_flops(
                part.rows,
                supervised_tokens=len(part.labels),
                causal=part.causal,
            )
    return flops / num_tokens


def compare(
    setting: Setting, peers: Sequence[str], *, rounds: int, threads: int
) -> list[dict[str, Any]]:
    """Measure ours and the peers, print a line for each, and return the records."""
    sides = ("ceiling", "ours", *peers)
    jobs = [("--measure", side, setting.dump()) for side in sides]
    found = measure_in_turns(__file__, jobs, rounds=rounds, threads=threads)
    medians = dict(zip(sides, map(median_of, found), strict=True))
    ceiling = medians.pop("ceiling")["flops_per_second"]
    flops, ours = flops_per_token(setting), medians["ours"]
    records = []
    for (side, numbers), results in zip(medians.items(), found[1:], strict=True):
        record = {
            **setting.described(),
            "side": side,
            "threads": threads,
            **numbers,
            "tokens_per_second_by_round": [result["tokens_per_second"] for result in results],
            "ours_over_this": ours["tokens_per_second"] / numbers["tokens_per_second"],
            "ours_over_this_per_cpu_second": ours["tokens_per_cpu_second"]
            / numbers["tokens_per_cpu_second"],
            "flops_per_token": flops,
            "ceiling_flops_per_second": ceiling,
            "share_of_ceiling": numbers["tokens_per_second"] * flops / ceiling,
        }
        records.append(record)
        print(line_of(record), flush=True)
    return records


def line_of(record: dict[str, Any]) -> str:
    """Return what is printed of a record."""
    return (
        f"{record['precision']} {record['model']} {record['vocabulary']:,} "
        f"{record['objective']:5} {record['side']:20} "
        f"{record['tokens_per_second']:9,.0f} tokens/s  "
        f"ours is {record['ours_over_this']:5.2f}x "
        f"({record['ours_over_this_per_cpu_second']:5.2f}x per CPU second)  "
        f"{record['share_of_ceiling']:5.1%} of {record['ceiling_flops_per_second'] / 1e9:,.0f} "
        f"GFLOP/s  {record['peak_bytes'] / 1e6:6,.0f} MB"
    )


def cells(options: argparse.Namespace, data: str) -> Iterator[Setting]:
    """Yield the grid that was asked for."""
    grid = itertools.product(
        options.precisions, options.models, options.vocabularies, options.objectives
    )
    for precision, model, vocabulary, objective in grid:
        yield Setting(data, model, vocabulary, objective, precision, options.seconds)


def main() -> None:
    """Read the command line and run."""
    parser = command_line(__doc__, "pretrain")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["nano"])
    parser.add_argument("--vocabularies", nargs="+", type=int, default=VOCABULARIES[:1])
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=tuple(OBJECTIVES))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--sides", nargs="+", choices=PEERS, default=PEERS, help="beside ours")
    parser.add_argument(
        "--all", action="store_true", help="nano, micro and 25m, both vocabularies (some hours)"
    )
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=1, help="the median is reported")
    parser.add_argument("--threads", type=int, default=1, help="of each measurement")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        side, setting = options.measure
        print_numbers(measure(side, Setting.parse(setting)))
        return
    if options.all:
        options.models, options.vocabularies = ["nano", "micro", "25m"], VOCABULARIES
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as data:
        prepare(Path(data), options.vocabularies)
        print(f"median of {options.rounds} rounds of {options.seconds:g} s", flush=True)
        try:
            for setting in cells(options, data):
                records += compare(
                    setting, options.sides, rounds=options.rounds, threads=options.threads
                )
        finally:  # a grid takes hours; what was measured is kept
            if records:
                write_records(options.json, records)


if __name__ == "__main__":
    main()
