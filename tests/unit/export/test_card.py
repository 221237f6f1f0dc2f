"""Model cards: every number from records, what is not known marked to be filled in."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_states import CORPUS_HASH, IDENTITY, LEDGER, RECIPE
from huggingface_hub import EvalResult, ModelCard
from markdown_it import MarkdownIt
from scipy import stats

from biphasic import export_model
from biphasic.export.card import write_fitted_card
from biphasic.files import write_json
from biphasic.tasks.use import HeadRecord
from snapshots import FOLDER, compare

pytestmark = pytest.mark.usefixtures("one_thread", "unprobed")
Card = Callable[..., str]
CLM, MLM = RECIPE["phases"]
PAIRS = {"objective": "contrastive", "pairs": "/nowhere/pairs", "steps": 5}
VECTORS = {**PAIRS, "pooling": "first", "query_prompt": "ask: "}
PART = {"documents": 7, "tokens": 70, "licenses": {}}
GRID = (
    ("reviews", 1e-3, 0, 0.8, 0.70), ("reviews", 1e-4, 0, 0.9, 0.60),
    ("reviews", 1e-3, 1, 0.7, 0.72), ("reviews", 1e-4, 1, 0.6, 0.99),
)  # fmt: skip

# Of a probe, whose facts are recorded, as it has no seed if it reads all examples.
PROBE = {
    "protocol": {"train": "head", "layer": 3},
    "about": {
        "title": "sequence classification, linear probe of layer 3", "is_trained": False,
        "metrics": [{"key": "accuracy", "title": "accuracy"}],
    },
}  # fmt: skip
FEW = {"train_examples": 1600}
DRAWN = {
    "protocol": {"train": "head", "layer": None},
    "about": {**PROBE["about"], "title": "x, linear probe", "is_trained": True},
}
HASHES = {IDENTITY: "STATE", CORPUS_HASH: "CORPUS", "a" * 64: "PLUGIN", "b" * 64: "OTHER"}
SHAPE = {"name": "floor:random-vectors", "width": 64, "tokenizer": IDENTITY}
# Of the same examples or of others; random vectors of the model's shape, two draws, or of another.
FLOORS = [
    ("a", 0.70, {"name": "floor:majority"}), ("a", 0.80, {"name": "reference:bag-of-words"}),
    ("b", 0.99, {"name": "floor:majority"}), ("a", 0.25, {**SHAPE, "draw": 0}),
    ("a", 0.35, {**SHAPE, "draw": 1}), ("a", 0.99, {**SHAPE, "width": 96}),
    ("a", 0.99, {**SHAPE, "tokenizer": "of another encoder"}),
]  # fmt: skip


def recipe(*phases: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**RECIPE, **({"phases": list(phases)} if phases else {}), **changes}


def ledger(objective: str, **changes: Any) -> list[dict[str, Any]]:
    """Return that of two phases, the second of another objective."""
    return [LEDGER[0], {**LEDGER[1], "objective": objective, **changes}]


def mixed(other: str) -> dict[str, Any]:
    mix = {"objective": "mix", "objectives": [{"objective": "clm"}, {"objective": other}]}
    turns = {"objective": "alternate", "steps": 9, "objectives": [mix, {"objective": "clm"}]}
    return {"recipe": recipe(turns), "ledger": [{**LEDGER[0], "objective": "alternate"}]}


def vectors(**changes: Any) -> dict[str, Any]:
    phases = recipe(CLM, VECTORS | changes)
    return {"recipe": phases, "ledger": ledger("contrastive")}


# What differs from the state of `export_states.py`: its record, options, results and corpora.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any], list[Any]]] = {
    "state": ({}, {}, [], []),
    "cut-short": ({"step": 5, "ledger": ledger("mlm", steps=2)}, {}, [], []),
    "plugins": ({"plugins": {"strides": [f"striding 1.2, strides@{64 * 'a'}"]}}, {}, [], []),
    "pairs": (
        {"recipe": recipe(CLM, PAIRS), "ledger": ledger("contrastive"),
         "heldout": {"clm": 5.125, "contrastive": 1.5}}, {}, [], [],
    ),
    "units": (
        {"heldout": {"clm": 5.125, "own": 1.5, "other": 2.0}, "loss_units": {"own": "bits"}},
        {}, [], [],
    ),
    "untrained": ({"step": 0, "ledger": [], "heldout": {}}, {}, [], []),
    "clm": ({"ledger": [{**LEDGER[0], "objective": "clm"}]}, {}, [], []),
    "mntp": ({"ledger": [{**LEDGER[0], "objective": "mntp"}]}, {}, [], []),
    "mixed-mntp": (mixed("mntp"), {}, [], []),
    "mixed-mlm": (mixed("mlm"), {}, [], []),
    **{
        f"base-{number}": ({"recipe": recipe(model={"pretrained": name})}, {}, [], [])
        for number, name in enumerate(["a/b\nlicense: mit", "../b", "a/b: c", "./b"])
    },
    "continued": (
        {"recipe": recipe(model={"pretrained": "some-owner/decoder", "revision": "abc"})},
        {}, [], [],
    ),
    "paths": (
        {"recipe": recipe(*({**phase, "corpus": "/home/me/corpus"} for phase in (CLM, MLM)),
                          model={"pretrained": "/home/me/decoder"}),
         "ground": {"corpus_hash": CORPUS_HASH, "corpora": {"/home/me/corpus": "b" * 64}}},
        {}, [], [],
    ),
    "prompts": (vectors(), {"format": "sentence-transformers"}, [], []),
    "pooling": (vectors(document_prompt="read: "), {}, [], []),
    "pooling-causal": (vectors(attention="causal", document_prompt="read: "), {}, [], []),
    "no-prompts": ({}, {"format": "sentence-transformers"}, [], []),
    "corpus": ({}, {}, [], [{}]),
    "corpus-merged": (
        {}, {}, [], [{"provenance": {"merged": [
            {"provenance": {"by_source": {name: PART}}} for name in ("a.txt", "/x/b.txt")
        ]}}],
    ),
    "corpus-elsewhere": ({}, {}, [], [{"content_hash": "f" * 64}]),
    "corpus-damaged": ({}, {}, [], [{"provenance": None}]),
    "scores": ({}, {}, [*GRID, ("lookup", 0.0, 0, None, 0.5, {"kind": "zs"})], []),
    "scores-tasks": (
        {}, {}, [("reviews", 1e-3, 0, 0.8, 0.7), ("news", 1e-3, 0, 0.8, 0.75),
                 ("foreign", 1e-3, 0, 0.8, 0.9, {"state": "0" * 64})], [],
    ),
    "scores-protocols": (
        {}, {}, [("reviews", 1e-3, 0, 0.8, 0.7), ("reviews", 1e-3, 0, 0.9, 0.8, {"steps": 20}),
                 # At different rates as well, if records name the protocols.
                 *(("news", rate, 0, 0.8, 0.7, {"protocol": {"max_steps": steps}})
                   for steps, rate in ((100, 1e-3), (1000, 1e-4)))], [],
    ),
    "scores-of-one-name": (
        {}, {}, [("reviews", 10.0**-rate, 0, 0.8, 0.7, {"examples_sha256": str(rate)})
                 for rate in (3, 4)], [],
    ),
    "scores-diverged": (
        {}, {}, [("reviews", 1e-3, 0, 0.8, 0.7), ("reviews", 1e-2, 0, None, None),
                 ("news", 1e-2, 0, None, None)], [],
    ),
    "scores-floors": (
        {}, {}, [("reviews", 1e-3, 0, 0.8, 0.7, {"examples_sha256": "a"}),
                 *(("reviews", 0.0, 0, share, share,
                    {"state": "", "examples_sha256": examples, "baseline": baseline})
                   for examples, share, baseline in FLOORS)], [],
    ),
    "scores-few-examples": (
        {}, {}, [("reviews", 1e-3, 0, 0.8, 0.7, {"protocol": FEW}),
                 ("lookup", 0.0, 0, None, 0.5, {"kind": "zs", "protocol": FEW})], [],
    ),
    "scores-probes": (
        {}, {}, [("reviews", 0.0, 0, 0.8, 0.7, PROBE),
                 *(("news", 0.0, seed, 0.8, test, DRAWN)
                   for seed, test in enumerate([0.5, 0.6]))], [],
    ),
    "scores-zero-shot": ({}, {}, [("lookup", 0.0, 0, None, 0.5, {"kind": "zs"})], []),
}  # fmt: skip


@pytest.fixture
def card_of(unchecked: None, tmp_path: Path) -> Card:
    """Return what exports a model, without the check, and reads its card."""

    def make(model: Path, **options: Any) -> str:
        return (export_model(model, tmp_path / "my|en_coder", **options) / "README.md").read_text()

    return make


def compared(name: str, card: str, place: Path, base: str = "state") -> None:
    """Compare a card with its snapshot: the lines that differ from those of the base card."""
    assert str(place) not in card
    assert "/home" not in card
    assert "license" in yaml.safe_load(card.split("---\n", 2)[1])
    for known, shown in HASHES.items():
        card = card.replace(known, shown)
    card = card.partition("\n<!-- biphasic")[0]  # sizes and hashes of files
    if name != base and (FOLDER / f"cards/{base}.txt").is_file():
        kept = (FOLDER / f"cards/{base}.txt").read_text("utf-8")
        card = changed(kept.splitlines(), card.splitlines())
    compare(f"cards/{name}", f"{card.rstrip()}\n", place)


def changed(kept: list[str], lines: list[str]) -> str:
    """Return the lines that differ, each group below its last heading in the new card."""
    shown = []
    for kind, *old, start, end in difflib.SequenceMatcher(None, kept, lines).get_opcodes():
        if kind != "equal":
            above = [line for line in lines[:start] if line.startswith(("# ", "## "))]
            shown.append(" ".join(["@@", *above[-1:]]))
            shown += [f"-{line}" for line in kept[slice(*old)]]
            shown += [f"+{line}" for line in lines[start:end]]
    return "\n".join(shown)


@pytest.mark.parametrize("name", CASES)
def test_cards_of_states(make_state, add_result, add_corpus, card_of, tmp_path, name):
    details, options, results, corpora = CASES[name]
    state = make_state(**details)
    for task, rate, seed, validation, test, *more in results:
        add_result(task, rate, seed, validation, test, **(more[0] if more else {}))
    for corpus in corpora:
        add_corpus(**corpus)
    compared(name, card_of(state, **options), tmp_path)


@pytest.mark.parametrize(
    ("family", "format"),
    [("qwen3", "hf"), ("llama", "hf"), ("bert", "sentence-transformers")],
)
def test_cards_of_other_models(make_family, card_of, tmp_path, family, format):
    compared(family, card_of(make_family(family), format=format), tmp_path)


def test_a_corpus_outside_of_the_store(state, add_corpus, card_of, tmp_path):
    add_corpus()
    store = state.parent.parent
    [described] = store.glob("data/*/train/corpus.json")
    (store / "texts").mkdir()
    described.rename(store / "texts" / f"{CORPUS_HASH}.json")
    compared("corpus", card_of(state), tmp_path)


def test_damaged_records_are_named(state, add_result, card_of, tmp_path):
    add_result("reviews", 1e-3, 0, 0.8, 0.7)
    # A damaged floor of another task is none of the state's.
    floor = {"state": "", "examples_sha256": "b", "baseline": {"name": "floor:majority"}}
    add_result("news", 0.0, 0, 0.7, 0.7, **floor)
    for path in (tmp_path / "store" / "finetunes").glob("*/result.json"):
        path.write_text(path.read_text().replace("0.7", "0.9"))
    compared("scores-damaged", card_of(state), tmp_path)


def test_scores_are_selected_by_validation_with_student(state, add_result, card_of, tmp_path):
    for result in GRID:
        add_result(*result)
    add_result("lookup", 0.0, 0, None, 0.5, kind="zs")
    # Seed 0 takes 1e-4 (test 0.60), seed 1 takes 1e-3 (test 0.72).
    half = stats.t.ppf(0.975, 1) * (0.12 / math.sqrt(2)) / math.sqrt(2)
    row = f"| reviews | accuracy | 2 | 1e-4 and 1e-3 | 66.00 (±{100 * half:.2f}) |"
    assert row in card_of(state)
    lookup, reviews = ModelCard.load(tmp_path / "my|en_coder/README.md").data.eval_results
    assert (lookup.task_type, lookup.metric_value) == ("information-retrieval", 0.5)
    assert reviews == EvalResult(
        task_type="text-classification",
        task_name="sequence classification",
        dataset_type="reviews",
        dataset_name="reviews",
        dataset_split="test",
        metric_type="accuracy",
        metric_name="accuracy, mean over 2 seeds",
        metric_value=0.66,  # a share
    )


def test_check_for_old_releases_runs(make_family, card_of, tmp_path):
    """It is silent for a model that sees both ways, and speaks up for one that does not."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    card = card_of(make_family("qwen3"))
    code = card.partition("earlier state:")[2].partition("```python\n")[2].partition("```")[0]
    assert len(code.splitlines()) == 3
    out = tmp_path / "my|en_coder"
    names = {"tokenizer": AutoTokenizer.from_pretrained(out)}
    exec(code, {**names, "model": AutoModel.from_pretrained(out)})  # noqa: S102
    config = AutoConfig.from_pretrained(out)
    config.is_causal = True
    causal = AutoModel.from_pretrained(out, config=config)
    with pytest.raises(AssertionError, match="runs causally"):
        exec(code, {**names, "model": causal})  # noqa: S102


HOSTILE = "a`b``c\n---\nlicense: mit\n```\n# x <script>|*{{ 7 * 7 }}{% raw %}\u202e'\"$(id)"


def write_fitted(folder: Path, **details: Any) -> str:
    record = {
        "format": "biphasic.head/1",
        "kind": "sc",
        "form": "sequence-classification",
        "task": "reviews",
        "title": "Reviews",
        "metric": "macro_f1",
        "model": "some-owner/encoder",
        "model_identity": IDENTITY,
        "learning_rate": 1e-4,
        "seed": 3,
        "steps": 7,
        "validation": {"macro_f1": 0.5, "accuracy": 0.625},
        "test": {"macro_f1": 0.75},
        "protocol": {"max_seqlen": 64, "batch_size": 8},
        "labels": ("no", "yes"),
        **details,
    }
    write_json(folder / "config.json", {"is_causal": False})
    name = details.get("title", "mine")
    write_fitted_card(folder, HeadRecord.model_validate(record), name=name, difference=1e-7)
    return (folder / "README.md").read_text("utf-8")


FITTED: dict[str, dict[str, Any]] = {
    "fitted": {},
    "fitted-probe": {"protocol": {"max_seqlen": 64, "batch_size": 8, "train": "head"}, "steps": 0},
    "fitted-words": {"kind": "tc", "form": "token-classification", "labels": ("O", "B-X")},
    "fitted-below-floor": {"baselines": {"floor:majority": 0.76}},
    "fitted-above-floor": {
        "baselines": {"floor:majority": 0.499, "reference:bag-of-words": 0.803}
    },
    **{
        f"fitted-{kind}-{number}": {
            "kind": kind, "form": "sentence-transformers", "labels": (),
            "query_template": query, "document_template": document,
        }
        for number, (kind, query, document) in enumerate([
            ("zs", "{text}", "{title} {text}"),
            ("zs", "query: {text}", "passage: {title} {text}"),
            ("ir", "query: {text}", "{title} {text}"),
            ("sts", "{text}", "{text}"),
        ])
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FITTED)
def test_cards_of_fine_tuned_models(tmp_path, name):
    compared(name, write_fitted(tmp_path, **FITTED[name]), tmp_path, base="fitted")


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("sc", "sequence-classification"),
        ("ir", "sentence-transformers"),
        ("qa", "question-answering"),
        ("tc", "token-classification"),
    ],
)
def test_names_are_text(kind, form, tmp_path):
    fields = {"task": HOSTILE, "title": HOSTILE, "model": HOSTILE, "template": HOSTILE}
    card = write_fitted(tmp_path, kind=kind, form=form, test={HOSTILE: 0.5}, **fields)
    front = yaml.safe_load(card.split("---\n", 2)[1])
    assert front["license"] is None
    assert "base_model" not in front
    assert "\u202e" not in card
    assert "49" not in card  # of 7 * 7
    _, _, body = card.split("---\n", 2)
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(body)
    headings = [
        after.content for token, after in pairwise(tokens)
        if token.type == "heading_open"
    ]  # fmt: skip
    assert headings[1:] == [
        "Use", "Scores", "Training", "Check", "Needs transformers 5.2 or newer"
    ]  # fmt: skip
    inline = [each.type for token in tokens for each in token.children or ()]
    assert "html_block" not in {token.type for token in tokens}
    assert "html_inline" not in inline
    for token in tokens:
        if token.type == "fence" and token.info == "python":
            compile(token.content, "card", "exec")
    assert len([token for token in tokens if token.type == "tr_open"]) == 1 + 3
