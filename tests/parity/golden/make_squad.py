"""Write `squad.json.gz`: cases scored by the reference SQuAD metrics.

The reference is `transformers.data.metrics.squad_metrics`, last shipped in transformers 4.57, so
this runs in an environment of its own: `pip install transformers==4.57.1`, then
`python make_squad.py`. The product never imports it.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from types import SimpleNamespace

from transformers.data.metrics.squad_metrics import get_raw_scores, squad_evaluate

WORDS = [
    *("the", "The", "a", "A", "an", "An", "THE", "there", "another", "ant", "a.", "the-cat", "'a'"),
    *("cat", "Cat", "cats", "cat's", "dog", "1999", "1,999", "3.14", "$5", "50%", "U.S.", "US"),
    *("Zürich", "zürich", "ZÜRICH", "naïve", "naïve", "Straße", "STRASSE", "İstanbul", "ǅ"),
    *(
        "東京",
        "東京都",
        "Москва",
        "مرحبا",
        "😀",
        "👩‍💻",
        "x²",
        "½",
        "№5",
        "…",
        "—",
        "–",
        "“quoted”",
    ),
    *("«a»", "‘the’", "-", "--", "!", "?", "(the)", "[a]", "a_b", "the_", "_a_", "an/the", "a/b"),
    *("\u00a0", "a\u00a0the", "the\u200bcat", "\t", "\n", "  ", "e.g.", "i.e.", "O'Neil", "A1"),
]
HAND = [
    ([], ""),
    ([], "a"),
    ([], "the"),
    ([], "?!"),
    ([], "something"),
    ([""], ""),
    (["the"], ""),
    (["the"], "the"),
    (["the", "cat"], ""),
    (["the", "cat"], "the"),
    (["..."], ""),
    (["..."], "..."),
    (["...", "cat"], "..."),
    (["cat"], ""),
    (["cat"], "the"),
    (["cat"], "A cat."),
    (["cat cat dog"], "cat dog dog"),
    (["cat dog", "dog cat"], "cat"),
    (["a b", "b c"], "b"),
    (["an apple"], "apple"),
    (["and the"], "and"),
    (["athe"], "a the"),
]


def phrase(rng: random.Random) -> str:
    """Return a few words, joined as real text would seldom be."""
    words = rng.choices(WORDS, k=rng.choice([0, 1, 1, 2, 2, 3, 4, 6]))
    return rng.choice([" ", " ", " ", "  ", "", "\n", "-"]).join(words)


def relative(gold: str, rng: random.Random) -> str:
    """Return a prediction related to an answer: the same, cut, extended, shuffled or recased."""
    words = gold.split()
    change = rng.randrange(6)
    if change == 0:
        return gold
    if change == 1:
        return " ".join(words[: rng.randint(0, len(words))])
    if change == 2:
        return f"{rng.choice(WORDS)} {gold}{rng.choice(['', '.', '!', ' the'])}"
    if change == 3:
        rng.shuffle(words)
        return " ".join(words)
    if change == 4:
        return gold.swapcase()
    return phrase(rng)


def main() -> None:
    """Draw the cases, score them and write the file."""
    rng = random.Random(20250700994)  # noqa: S311 - cases, not secrets
    drawn = list(HAND)
    while len(drawn) < 4000:
        golds = [phrase(rng) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
        drawn.append((golds, relative(rng.choice(golds), rng) if golds else phrase(rng)))
        if rng.random() < 0.08:
            drawn[-1] = (golds, "")
    cases = []
    for golds, prediction in drawn:
        example = SimpleNamespace(qas_id="q", answers=[{"text": text} for text in golds])
        exact, f1 = get_raw_scores([example], {"q": prediction})
        cases.append([golds, prediction, exact["q"], f1["q"]])
    groups = [evaluate(cases[start : start + 50]) for start in range(0, len(cases), 50)]
    body = json.dumps({"cases": cases, "groups_of_50": groups}, separators=(",", ":"))
    target = Path(__file__).with_name("squad.json.gz")
    target.write_bytes(gzip.compress(body.encode(), mtime=0))


def evaluate(cases: list) -> dict[str, float]:
    """Return the reference's totals over a group of cases, in percent."""
    examples = [
        SimpleNamespace(qas_id=str(number), answers=[{"text": text} for text in golds])
        for number, (golds, *_) in enumerate(cases)
    ]
    predictions = {str(number): case[1] for number, case in enumerate(cases)}
    totals = squad_evaluate(examples, predictions)
    return {key: value for key, value in totals.items() if not key.startswith("best")}


if __name__ == "__main__":
    main()
