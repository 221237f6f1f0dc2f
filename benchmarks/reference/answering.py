"""Extractive question answering with transformers alone: windows, start and end, SQuAD's scores."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from protocol import (
    SPLITS,
    Metrics,
    parse_options,
    read_lines,
    run,
    shortest_first,
    training_arguments,
)
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
)

OVERLAP = 64
CLS = 0  # its position: the answer of windows without one


def encode(rows: list[dict[str, Any]], tokenizer: Any) -> list[dict[str, Any]]:
    """Return windows of question and context; `first` and `offsets` are of the context's tokens."""
    encoded = tokenizer(
        [row["question"] for row in rows],
        [row["context"] for row in rows],
        truncation="only_second",
        stride=OVERLAP,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows = []
    for index, number in enumerate(encoded["overflow_to_sample_mapping"]):
        parts = encoded.sequence_ids(index)
        first, length = parts.index(1), parts.count(1)
        offsets = encoded["offset_mapping"][index][first : first + length]
        start, end = answer_tokens(rows[number]["answers"], offsets, first)
        windows.append(
            {
                "input_ids": encoded["input_ids"][index],
                "start_positions": start,
                "end_positions": end,
                "row": number,
                "first": first,
                "offsets": offsets,
            }
        )
    return windows


def answer_tokens(answers: dict, offsets: list[tuple[int, int]], first: int) -> tuple[int, int]:
    """Return the first and last token of the first answer, if all of it is in the window."""
    if not answers["text"]:
        return CLS, CLS
    begins = answers["answer_start"][0]
    ends = begins + len(answers["text"][0])
    if begins < offsets[0][0] or ends > offsets[-1][1]:
        return CLS, CLS
    start = next(token for token, (_, end) in enumerate(offsets) if end > begins)
    end = max(token for token, (start, _) in enumerate(offsets) if start < ends)
    return first + start, first + end


def predict(
    trainer: Trainer, windows: list[dict[str, Any]], rows: list[dict[str, Any]], longest: int
) -> list[str]:
    """Answer every question by its best span over all windows, or by nothing."""
    windows = shortest_first(windows)
    starts, ends = trainer.predict(windows).predictions
    best = [(-np.inf, "")] * len(rows)
    nothing = [np.inf] * len(rows)
    for window, start, end in zip(windows, starts, ends, strict=True):
        row, first, offsets = window["row"], window["first"], window["offsets"]
        context = slice(first, first + len(offsets))
        score, first, last = best_span(start[context], end[context], longest)
        nothing[row] = min(nothing[row], start[CLS] + end[CLS])
        if score > best[row][0]:
            text = rows[row]["context"][offsets[first][0] : offsets[last][1]]
            best[row] = score, text
    return ["" if none > score else text for (score, text), none in zip(best, nothing, strict=True)]


def best_span(start: NDArray, end: NDArray, longest: int) -> tuple[float, int, int]:
    """Return score, first and last token of the best span of at most `longest` tokens."""
    allowed = np.tri(len(start), k=longest - 1, dtype=bool) & np.tri(len(start), dtype=bool).T
    sums = np.where(allowed, start[:, None] + end, -np.inf)
    row, column = np.unravel_index(sums.argmax(), sums.shape)
    return float(sums[row, column]), int(row), int(column)


def words(text: str) -> list[str]:
    """Return an answer's words: lower case, no punctuation, no articles."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def f1(predicted: list[str], expected: list[str]) -> float:
    """Return the F1 over words; without words on either side only both empty are right."""
    common = sum((Counter(predicted) & Counter(expected)).values())
    if not predicted or not expected:
        return float(predicted == expected)
    return 2 * common / (len(predicted) + len(expected))


def squad_scores(answers: list[str], rows: list[dict[str, Any]]) -> Metrics:
    """Score each answer against the best of the expected ones; none at all expects nothing."""
    scores = []
    for answer, row in zip(answers, rows, strict=True):
        found = words(answer)
        expected = [words(text) for text in row["answers"]["text"]] or [[]]
        scores.append((max(f1(found, each) for each in expected), found in expected))
    means = np.mean(scores, axis=0)
    return {"f1": float(means[0]), "exact_match": float(means[1])}


def main() -> None:
    options = parse_options(__doc__)
    tokenizer = AutoTokenizer.from_pretrained(options.model, model_max_length=options.max_length)
    rows = {split: read_lines(options.data / f"{split}.jsonl") for split in SPLITS}
    splits = {split: encode(questions, tokenizer) for split, questions in rows.items()}
    longest = 1 + max(w["end_positions"] - w["start_positions"] for w in splits["train"])
    trainer = Trainer(
        model=AutoModelForQuestionAnswering.from_pretrained(options.model, dtype=torch.float32),
        args=training_arguments(options, len(splits["train"])),
        train_dataset=splits["train"],
        data_collator=DataCollatorWithPadding(tokenizer),
    )

    def evaluate() -> dict[str, Metrics]:
        return {
            split: squad_scores(predict(trainer, splits[split], rows[split], longest), rows[split])
            for split in SPLITS[1:]
        }

    run(options, trainer, evaluate)


if __name__ == "__main__":
    main()
