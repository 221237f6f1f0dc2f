"""The values that a question is about, how they relate to each other, and what the table lacks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from biphasic.analysis.claims.check import Check, Comparison
from biphasic.analysis.claims.levels import POSITIONS, Selection, known, levels, selected
from biphasic.analysis.claims.rows import (
    CLOSE,
    NUMBER_FACTORS,
    ORDERED_FACTORS,
    Row,
    Rows,
    factor_text,
    grouped,
    held_factors,
    level_text,
    merged,
)
from biphasic.analysis.estimate import LEVEL
from biphasic.analysis.scores.table import Scores
from biphasic.analysis.statistics.compare import Family
from biphasic.analysis.statistics.contrast import blocks_for, contrast
from biphasic.analysis.text import listing


@dataclass
class Question:
    """The rows of a question."""

    # Two models on one dataset get the verdict of the report: the same test, corrected for all
    # pairs of models there. Values computed from several scores, such as differences between
    # models, are tested the same way and corrected for the comparisons of the question. In a
    # published table, only means and intervals are compared.

    scores: Scores
    family: Callable[[str], Family]  # tests all pairs of models on a dataset, once
    sizes: Mapping[str, float] | None  # numbers that order the sizes
    options: Mapping[str, Any]  # of the check, such as how many comparisons must hold
    rows: Rows = ()
    kind: str = "score"  # of the values: `score`, `difference` or `level`
    num_comparisons: int = 0
    absent: dict[str, None] = field(default_factory=dict)  # what the table lacks, in order

    def check(self, expected: str, comparisons: Iterable[Comparison]) -> Check:
        """Return the check of these comparisons."""
        every = tuple(comparisons)  # may add to what the table lacks
        return Check(every, expected, **self.options, absent=tuple(self.absent))

    def lack(self, text: str) -> None:
        """Record something that the table lacks; without rows, what matters is recorded already."""
        if self.rows:
            self.absent[text] = None

    def levels_of(self, factor: str, rows: Rows) -> list[Any]:
        """Return the levels of a factor, ordered by size or number if possible."""
        every = dict.fromkeys(getattr(row, factor) for row in rows)
        present = [level for level in every if level is not None]
        if factor == "size":
            return sorted(present, key=self.sizes.__getitem__) if self.sizes else present
        return sorted(present) if factor in NUMBER_FACTORS else present

    def has_levels(self, where: Selection, needs: Mapping[str, int]) -> bool:
        """Return and record whether the table has the needed numbers of levels of factors."""
        firm = {f: w for f, w in where.items() if not (isinstance(w, str) and w in POSITIONS)}
        noted = dict(self.absent)
        rows = self.narrow(firm, is_lenient=True) if needs else ()
        if needs and not rows:  # what is absent is recorded, or there were no rows before
            return False
        self.absent = noted
        for factor, number in needs.items():
            if len(self.levels_of(known(factor, ORDERED_FACTORS), rows)) < number:
                self.lack(f"fewer than {number} levels of {factor_text(factor)}")
                return False
        return True

    def is_unordered(self, factor: str) -> bool:
        """Return and record whether a factor has no order: sizes without parameter counts."""
        is_unordered = factor == "size" and self.sizes is None
        if is_unordered:
            self.lack("sizes have no order: numbers of parameters are unknown")
        return is_unordered

    def narrow(self, selection: Selection, *, is_lenient: bool = False) -> Rows:
        """Return the rows of a selection; if lenient, also those without the factors at all."""
        # Positions and nearest levels are resolved among the rows that match everything else.
        rows = self.rows
        if "finished" in selection:
            rows = [row for row in rows if row.finished == selection["finished"]]
            if not rows:
                self.lack(f"no {'finished' if selection['finished'] else 'intermediate'} models")
        by_factor = {f: w for f, w in selected(selection).items() if f not in {"dataset", "group"}}
        for factor, chosen in sorted(by_factor.items(), key=lambda item: item[1].is_relative):
            if not rows:
                break
            available, picked = self.levels_of(factor, rows), []
            if not (chosen.is_relative and self.is_unordered(factor)):
                picked = chosen.pick(available)
                lacking = [v for v in chosen.values if not levels(factor, v).pick(available)]
                for value in lacking:
                    likely = [x for x in available if str(x).lower() == str(value).lower()]
                    meant = f" (did you mean '{likely[0]}'?)" if likely else ""
                    self.lack(f"no {factor_text(factor)} {level_text(factor, value)}{meant}")
                if not picked and not lacking:
                    self.lack(f"no {factor_text(factor)} {chosen.text}")
            kept = {*picked, *([None] if is_lenient else [])}
            rows = [row for row in rows if getattr(row, factor) in kept]
        return rows

    def pairs(self, first: Selection, second: Selection) -> list[tuple[Any, Any]]:
        """Return every row of one selection with each counterpart in the other."""
        # Values that only the second selection lacks are not recorded; a row without a counterpart
        # gets a placeholder that names it.
        num_absent = len(self.absent)
        ones = self.narrow(first)
        if not ones and len(self.absent) == num_absent:
            self.lack("no model of the first selection")
        noted = dict(self.absent)
        others = self.narrow(second)
        self.absent = noted
        held, pairs = held_between(first, second), []
        wanted = listing([f"{factor_text(f)} {one.text}" for f, one in selected(second).items()])
        for one in ones:
            mine = [other for other in others if _do_agree(one, other, held)]
            if not mine or any(other.name == one.name for other in mine):
                name = f"a counterpart of {one.name}{wanted and f' with {wanted}'}"
                mine = [one._replace(name=name, mean=math.nan, terms=(), is_scored=False)]
            pairs += [(one, other) for other in mine]
        return pairs

    def use_gap(self, of: Selection, minus: Selection) -> None:
        """Replace scores by one score minus another, for every pair of rows."""
        held, gaps = held_between(of, minus), []
        for row, partner in self.pairs(of, minus):
            mean = row.mean - partner.mean
            terms = (*row.terms, *(term._replace(weight=-term.weight) for term in partner.terms))
            gaps.append(Row(
                **merged(row, partner, held), name=f"{row.name} - {partner.name}", mean=mean,
                terms=() if math.isnan(mean) else terms, is_scored=not math.isnan(mean),
            ))  # fmt: skip
        self.rows, self.kind = gaps, "difference"

    def use_best_level(self, factor: str) -> None:
        """Replace scores by the level at which each group scores highest, the smaller on a tie."""
        best_rows = []
        for shared, every in grouped(self.rows, held_factors({known(factor, NUMBER_FACTORS)})):
            group = [row for row in every if getattr(row, factor) is not None]
            if len({getattr(row, factor) for row in group}) < 2:
                continue
            best = max(group, key=lambda row: (row.mean, -getattr(row, factor)))
            self.num_comparisons = len(group)
            is_known = not any(math.isnan(row.mean) for row in group) and (
                not self.are_tested(group)
                or all(self.relation(best, one) == "higher" for one in group if one is not best)
            )
            best_rows.append(Row(
                **shared, is_scored=all(row.is_scored for row in group),
                name=best.name if is_known else f"the best {factor_text(factor)}",
                mean=getattr(best, factor) if is_known else math.nan,
            ))  # fmt: skip
        if not best_rows:
            self.lack(f"no models that differ only in {factor_text(factor)}")
        self.rows, self.kind = best_rows, "level"

    def text(self, row: Any) -> str:
        """Format the number: `87.85 (0.13)`; a difference with its sign."""
        if math.isnan(row.mean):
            return "?"
        if self.kind != "score":
            return f"{row.mean:+z.2f}" if self.kind == "difference" else f"{row.mean:g}"
        interval = "" if math.isnan(row.half_width) else f" ({row.half_width:.2f})"
        return f"{row.mean:z.2f}{interval}"

    def listed(self, rows: Rows, over: Iterable[str]) -> str:
        """Format each number with its position."""
        return ", ".join(
            f"{self.text(row)} at {' '.join(level_text(f, getattr(row, f)) for f in over)}"
            for row in rows
        )

    def answer(
        self,
        text: str,
        decide: Callable[[Iterable[bool | None]], bool | None],
        steps: Iterable[tuple[Any, Any, str]],
        factors: Mapping[str, Any],
        rows: Rows,
    ) -> Comparison:
        """Return whether all, or any, of some relations between rows hold."""
        holds = decide([self.is_met(*step) for step in steps])
        if any(math.isnan(row.mean) for row in rows):
            holds = holds or None  # nothing is said to fail while a score is missing
        return Comparison(text, holds, factors, rows)

    def are_tested(self, rows: Rows) -> bool:
        """Return whether values have scores by seed, so that every comparison is a test."""
        return not self.scores.is_published and all(row.terms for row in rows)

    def relation(self, row: Any, other: Any) -> str | None:
        """Return `higher`, `lower` or, without tests, `equal`; None if the data do not decide."""
        if math.isnan(row.mean - other.mean):
            return None
        if not self.are_tested([row]):
            return by_mean(row, other)
        terms, others = row.terms, other.terms
        if len(terms) == len(others) == 1 and terms[0].dataset == others[0].dataset:
            pair = self.family(terms[0].dataset).compare(terms[0].model, others[0].model)
            return pair.verdict if pair is not None and pair.is_clear else None
        weights: dict[tuple[str, str], float] = defaultdict(float)
        for sign, side in ((1, terms), (-1, others)):
            for term in side:
                weights[term.model, term.dataset] += sign * term.weight
        one = contrast(self.scores, weights, blocks=blocks_for(self.scores, weights))
        if one is None or one.p_value is None or one.mean == 0:
            return None
        is_clear = one.p_corrected(one.p_value * self.num_comparisons) <= LEVEL
        return ("higher" if one.mean > 0 else "lower") if is_clear else None

    def are_apart(self, row: Any, other: Any) -> bool | None:
        """Return whether two values differ significantly; None without the needed intervals."""
        if self.are_tested([row]):
            return self.relation(row, other) is not None
        width = row.half_width + other.half_width
        return None if math.isnan(width) else abs(row.mean - other.mean) > width + CLOSE

    def is_met(self, row: Any, other: Any, expect: str) -> bool | None:
        """Return whether one value relates to another as expected; None if unknown."""
        relation = self.relation(row, other)
        if relation is None:
            return None
        direction = expect.rsplit(maxsplit=1)[-1]
        holds = relation == direction or (direction == "different" and relation != "equal")
        # Without the right direction there is no significant difference either.
        if holds and "significantly" in expect:
            holds = self.are_apart(row, other)
        return None if holds is None else holds != expect.startswith("not ")


def by_mean(row: Any, other: Any) -> str:
    """Return whether a mean is `higher` than another, `lower` or `equal`."""
    if abs(row.mean - other.mean) <= CLOSE:
        return "equal"
    return "higher" if row.mean > other.mean else "lower"


def held_between(first: Selection, second: Selection) -> list[str]:
    """Return the factors that must be equal between two selections."""
    # A factor that both name alike is held, too: models of the longest continued training of each
    # start are compared only if they are equally long.
    texts = [{name: one.text for name, one in selected(side).items()} for side in (first, second)]
    alike = {name for name, text in texts[0].items() if text == texts[1].get(name)}
    return held_factors({*first, *second} - alike)


def _do_agree(one: Any, other: Any, held: Iterable[str]) -> bool:
    return all(
        getattr(one, factor) == getattr(other, factor)
        or (factor == "mask_rate" and None in {one.mask_rate, other.mask_rate})
        for factor in held
    )
