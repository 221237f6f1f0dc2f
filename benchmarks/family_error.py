"""How often a family of equal models has a false "clear", and how often a lead is found.

Simulates scores and gives them to the tests that decide in reports. family_error.md has the
tables. See README.md beside this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from harness import command_line, write_records
from numpy.typing import NDArray
from scipy.special import ndtri

from biphasic.analysis.estimate import LEVEL, estimate
from biphasic.analysis.scores.examples import CellInfluences, ExampleScores
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Planned, Score, Scores
from biphasic.analysis.statistics.compare import Family, Key, family_of, plan_results
from biphasic.analysis.statistics.contrast import Contrast
from biphasic.errors import DataError

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]
"""Returns scores of single examples as shares, [MODELS, num_seeds, num_examples]."""

MODELS = 5
LEADS = (2.0, 4.0, 8.0)
"""In standard deviations of the differences between paired runs."""
_SPREAD = 0.2
UNEQUAL = (0.1, 0.15, 0.2, 0.3, 0.4)


def normal(seed: float, example: float, both: float, *, num_examples: int = 100) -> Draw:
    """Draw scores of examples that are sums of normal luck, with these standard deviations."""

    def draw(random: np.random.Generator, num_seeds: int) -> Array:
        return (
            seed * random.normal(size=(MODELS, num_seeds, 1))
            + example * random.normal(size=(MODELS, 1, num_examples))
            + both * random.normal(size=(MODELS, num_seeds, num_examples))
        )

    return draw


def accuracy(
    num_examples: int,
    *,
    share: float = 0.8,
    seed: float = 0.1,
    example: float = 0.7,
    both: float = 0.5,
) -> Draw:
    """Draw right and wrong answers: examples are hard for all models, and more so for some."""
    threshold = ndtri(share) * (1 + seed**2 + example**2 + both**2) ** 0.5
    luck = normal(seed, example, both, num_examples=num_examples)

    def draw(random: np.random.Generator, num_seeds: int) -> Array:
        hardness = random.normal(size=num_examples)
        return (hardness + luck(random, num_seeds) < threshold).astype(float)

    return draw


def skewed(
    tail: Callable[[np.random.Generator, tuple[int, ...]], Array], spreads: tuple[float, ...]
) -> Draw:
    """Draw seeds with a long tail downwards, of each model as long as its spread says."""

    def draw(random: np.random.Generator, num_seeds: int) -> Array:
        seeds = np.array(spreads)[:, None, None] * tail(random, (MODELS, num_seeds, 1))
        return 0.3 * random.normal(size=(MODELS, 1, 100)) - seeds

    return draw


def finetuned(*, is_shared: bool) -> Draw:
    """Draw runs with an effect of the fine-tuning seed on each model: one seed, or each its own."""

    def draw(random: np.random.Generator, num_seeds: int) -> Array:
        effect = 0.2 * random.normal(size=(MODELS, 1 if is_shared else num_seeds, 1))
        return normal(0.1, 0.3, 0.1)(random, num_seeds) + effect

    return draw


def _gamma(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return (random.gamma(4.0, size=shape) - 4) / 2


def _exponential(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.exponential(size=shape) - 1


def _lognormal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.lognormal(size=shape) - np.exp(0.5)


def _failing(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw normal luck; one seed in twenty fails."""
    return random.normal(size=shape) + 10 * ((random.random(shape) < 0.05) - 0.05)


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.normal(size=shape)


REGIMES: Mapping[str, Draw] = {
    "seeds": normal(0.2, 0.02, 0.1),
    "test examples": normal(0.01, 1.0, 0.1),
    "both": normal(0.1, 1.0, 0.1),
    "what seeds and examples do together": normal(0.02, 0.5, 1.5),
    "accuracy of 80 % on 43 examples": accuracy(43),
    "the same, examples alone": accuracy(43, seed=0.02, example=1.0, both=0.1),
    "accuracy of 80 % on 200 examples": accuracy(200),
    "accuracy of 95 % on 200 examples": accuracy(200, share=0.95),
    "normal seeds, spreads 1 to 4": skewed(_normal, UNEQUAL),
    "gamma tails of seeds, spreads 1 to 4": skewed(_gamma, UNEQUAL),
    "one seed in twenty fails": skewed(_failing, (0.1,) * MODELS),
    "exponential tails of seeds, spreads 1 to 4": skewed(_exponential, UNEQUAL),
    "lognormal tails of seeds, spreads 1 to 4": skewed(_lognormal, UNEQUAL),
    "the fine-tuning seed, each run its own": finetuned(is_shared=False),
    "the fine-tuning seed, one for all runs": finetuned(is_shared=True),
}
NOT_HELD = {
    "seed": {"exponential tails of seeds, spreads 1 to 4",
             "lognormal tails of seeds, spreads 1 to 4", "the fine-tuning seed, one for all runs"},
    "run": {"the fine-tuning seed, one for all runs"},
}  # fmt: skip
"""Regimes in which more than one family in twenty has a false "clear"."""


def family(table: Array, *, are_runs: bool) -> Family:
    """Return the family of models with scores of examples, [MODELS, num_seeds, num_examples].

    Seeds are pretraining runs, or those of fine-tuning.
    """
    means = table.mean(axis=2)
    names = [f"m{index}" for index in range(len(table))]
    cells = {
        (name, "d"): Score(
            estimate([*(100 * row)], convention="standard"), dict(enumerate(100 * row))
        )
        for name, row in zip(names, means, strict=True)
    }
    scores = Scores(
        "simulated",
        "standard",
        tuple(ModelInfo(name, name) for name in names),
        (DatasetInfo("d", "SC", "accuracy"),),
        cells,
        num_pretraining_runs=table.shape[1] if are_runs else 1,
        examples=_no_file,
    )
    for name, rows, mean in zip(names, table, means, strict=True):
        by_seed = dict(enumerate(100 * (rows - mean[:, None])))
        scores.influences[name, "d"] = CellInfluences("", by_seed, rows.shape[-1])
    return family_of(scores, "d")


def _no_file(model: str, dataset: str) -> ExampleScores:
    raise DataError(f"{model} on {dataset} was not prepared")


def false_families(
    draw: Draw, *, num_seeds: int, are_runs: bool, num_families: int
) -> tuple[float, float]:
    """Return the share of families with a false "clear": by the test, and by seeds alone."""
    random = np.random.default_rng(0)
    found = [family(draw(random, num_seeds), are_runs=are_runs) for _ in range(num_families)]
    by_test, by_seeds = (
        float(np.mean([(values <= LEVEL).any() for values in tables]))
        for tables in zip(*(f.corrected[:2] for f in found), strict=True)
    )
    return by_test, by_seeds


def power(lead: float, *, num_seeds: int, are_runs: bool, num_families: int) -> float:
    """Return the share of a leading model's comparisons that are clear.

    `lead` is in standard deviations of the paired differences.
    """
    random, draw = np.random.default_rng(1), normal(_SPREAD, 0.02, 0.1)
    clear = []
    for _ in range(num_families):
        table = draw(random, num_seeds)
        table[0] += lead * np.sqrt(2 * (_SPREAD**2 + 0.1**2 / table.shape[2]))
        tested = family(table, are_runs=are_runs)
        pairs = (tested.compare("m0", f"m{other}") for other in range(1, MODELS))
        clear += [pair is not None and pair.verdict == "higher" for pair in pairs]
    return float(np.mean(clear))


NOISY = ((12, 4, 6.0), (20, 6, 3.0), (30, 8, 3.0), (12, 2, 6.0))
"""Designs of studies: arms, those that a question compares, and how much more these vary."""


def asked(table: Array, num_compared: int) -> dict[Key, Contrast]:
    """Test all pairs of the first arms as one question, from scores [num_arms, num_runs]."""
    scores = family(table[:, :, None] / 100, are_runs=True).scores
    names = [model.name for model in scores.models[:num_compared]]
    pairs = (((first,), (second,)) for first, second in combinations(names, 2))
    planned = tuple(Planned(first, second, ("d",), question="Q") for first, second in pairs)
    return plan_results(dataclasses.replace(scores, planned=planned, examples=None))


def noisy_question(
    design: tuple[int, int, float], *, num_runs: int, num_families: int, lead: float = 0.0
) -> float:
    """Return the share of questions with a false "clear", or of a leading arm's clear pairs.

    `lead` is in standard deviations of the paired differences.
    """
    num_arms, num_compared, spread = design
    random, clear = np.random.default_rng(2), []
    scale = np.ones((num_arms, 1))
    scale[:num_compared] = spread
    for _ in range(num_families):
        table = scale * random.normal(size=(num_arms, num_runs))
        table[0] += lead * spread * 2**0.5
        tests = asked(table, num_compared)
        found = [
            test.p_adjusted is not None and test.p_adjusted <= LEVEL
            for (*_, sides), test in tests.items()
            if not lead or sides[0][0] == "m0"
        ]
        clear.append(np.mean(found) if lead else any(found))
    return float(np.mean(clear))


def main() -> None:
    """Print the rows of the tables of family_error.md."""
    parser = command_line(__doc__, "family_error")
    parser.add_argument("--families", type=int, default=4000, help="of each regime")
    chosen = parser.parse_args()
    designs = ((5, False), (5, True), (3, True))
    records: list[dict[str, Any]] = []
    for name, draw in REGIMES.items():
        row = []
        for num_seeds, are_runs in designs:
            share, alone = false_families(
                draw, num_seeds=num_seeds, are_runs=are_runs, num_families=chosen.families
            )
            row += [f"{share:.1%}", *([] if are_runs else [f"{alone:.0%}"])]
            records.append({"regime": name, "seeds": num_seeds, "runs": are_runs, "false": share})
        print(f"| {name} | {' | '.join(row).replace('%', ' %')} |", flush=True)
    for lead in LEADS:
        row = []
        for num_seeds, are_runs in ((3, False), (3, True), (5, False), (5, True)):
            share = power(
                lead,
                num_seeds=num_seeds,
                are_runs=are_runs,
                num_families=max(chosen.families // 4, 1),
            )
            row.append(f"{share:.0%}")
            records.append({"lead": lead, "seeds": num_seeds, "runs": are_runs, "found": share})
        print(f"| {lead:.0f} | {' | '.join(row).replace('%', ' %')} |", flush=True)
    for num_arms, num_compared, spread in NOISY:
        row = []
        for num_runs in (3, 5):
            wrong = noisy_question(
                (num_arms, num_compared, spread), num_runs=num_runs, num_families=chosen.families
            )
            found = noisy_question(
                (num_arms, num_compared, 1.0),
                num_runs=num_runs,
                num_families=max(chosen.families // 4, 1),
                lead=3.0,
            )
            row += [f"{wrong:.1%}", f"{found:.0%}"]
            records.append({"arms": num_arms, "runs": num_runs, "false": wrong, "found": found})
        what = f"{num_compared} of {num_arms} arms, {spread:.0f} times the spread"
        print(f"| {what} | {' | '.join(row).replace('%', ' %')} |", flush=True)
    write_records(chosen.json, records)


if __name__ == "__main__":
    main()
