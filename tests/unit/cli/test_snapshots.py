"""What commands print, as snapshots: counts, notes, refusals, and how to mend what is wrong."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_study import ARMS, TASKS, FakeStudy, write_json, write_study_with_factors
from made_layout import write_cell

from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer, write_tokenizer
from mini_study import flip, truncate
from snapshots import compare, printed

STUDIES = Path(__file__).parents[3] / "studies"
Place = Callable[[Path], object]


def results(place: Path) -> None:
    """Means 3 points apart; at 1e-5 everything is worse, also on validation."""
    for model, shift in (("a", 0.03), ("b", 0.0)):
        tests = [0.60 + shift, 0.62 + shift, 0.64 + shift + (0.001 if shift else 0)]
        write_cell(place, f"results/{model}/sc/MNLI", {"1e-4": tests, "1e-5": [0.5, 0.5, 0.5]})


def damaged(place: Path) -> None:
    results(place)
    (place / "results/a/sc/MNLI/lr1e-4_sd1/results.json").write_text("{")


def hostile(place: Path) -> None:
    names = (
        "[red]x[/red]",
        "<script>alert(1)<",
        "\\textbf{x} & $y$ %",
        "na\u202eme",
        "\x1b[31mred",
    )
    for name in names:
        write_cell(place, f"results/{name}/sc/{'x' * 40}", {"1e-4": [0.6, 0.8]})


def fake(place: Path, **fields: Any) -> None:
    study = FakeStudy(**{"steps": 20, "arms": ARMS[1:3], "tasks": TASKS[:1], **fields})
    folder, store = study.write(place)
    folder.rename(place / "study")
    store.rename(place / "store")


def known(place: Path, **fields: Any) -> None:
    """A study of one size whose records name the factors of each arm."""
    write_study_with_factors(place, **fields).rename(place / "study")


def papers(place: Path) -> None:
    scores = {"610m-clm-42k": 0.92, "610m-mlm40-42k": 0.90, "mystery": 0.5}
    for model, score in scores.items():
        for seed in range(3):
            luck = seed / 1000 if model != "610m-clm-42k" else seed**2 / 1000
            value = {"score": score + luck, "scores_i": []}
            folder = place / "results" / model / "TC" / "conll" / f"lr1e-5_sd{seed}"
            write_json(folder / "results.json", {"validation": value, "test": value})
    (place / "mine.py").write_text(
        "from biphasic.analysis.claims import claim\n"
        "@claim('m', 'T')\n"
        "def m(table):\n"
        "    yield table.varies('size')\n"
    )


def studies(place: Path) -> None:
    text = (STUDIES / "smoke.yaml").read_text()
    (place / "smoke.yaml").write_text(text)
    (place / "mine.yaml").write_text(text.replace("steps: 30", "steps: 31"))
    (place / "recipe.yaml").write_text(
        "model: pico\nphases: [{objective: clm, steps: 2}]\nlearning_rate: {peak: 1e-3}\n"
    )
    (place / "t.txt").write_text("a text\n")
    (place / "model").mkdir()


def pairs(place: Path) -> None:
    rows = [{"anchor": "what purrs", "positive": "a cat", "negatives": ["a dog"]}] * 2
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "bad.csv").write_text("query,positive\na,\n")
    table = ["query,positive", "purring cats,cats love purring", "sleeping cats,cats are sleeping"]
    (place / "cats.csv").write_text("\n".join([*table, "数学,学生学习数学", ""]), encoding="utf-8")


def texts(place: Path) -> None:
    """Two files of documents, a folder of files, a tokenizer, and a task."""
    draw = json.loads((place / "documents.json").read_text())
    for name, part in (("one", draw[:30]), ("two", draw[30:])):
        rows = ({"id": key, "body": text, "license": "CC0-1.0"} for key, text in part)
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "texts").mkdir()
    for number in range(40):
        (place / f"texts/{number}.txt").write_text(f"number {number}")
    for name, text in (("empty.txt", " "), ("again.txt", "number 7"), ("cover.png", "?")):
        (place / "texts" / name).write_text(text)
    (place / "mine/train").mkdir(parents=True)
    (place / "mine/train/a.txt").write_text("mine")
    (place / "finished.yaml").write_text("folder: corpora/mine")
    (place / "corpus.yaml").write_text("sources: [one.jsonl]")
    nul = '{"id": "x", "body": "some\\u0000words"}'
    (place / "nul.jsonl").write_text((place / "one.jsonl").read_text() + nul)
    twice = '{"id": "x", "body": "some words", "body": "others"}'
    (place / "twice.jsonl").write_text((place / "one.jsonl").read_text() + twice)


def _others_tokenizer(place: Path) -> None:
    shutil.rmtree(place / "one/tokenizer")
    other = train_tokenizer(["the rows of an array"] * 9, vocab_size=300)
    write_tokenizer(other, place / "one/tokenizer")


def _no_mask(place: Path) -> None:
    """A tokenizer without a mask, all of whose ids of two bytes are taken."""
    folder = shutil.copytree(place / "given", place / "plain")
    (folder / "manifest.json").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["added_tokens"] = [t for t in rules["added_tokens"] if t["content"] != "<|mask|>"]
    vocabulary = rules["model"]["vocab"]
    vocabulary["zz"] = vocabulary.pop("<|mask|>")
    vocabulary.update({f"zz{number}": number for number in range(320, 65_536)})
    (folder / "tokenizer.json").write_text(json.dumps(rules))


BUILD = "corpus build {0}.jsonl --out {0} --column body --tokenizer given --heldout-fraction 0.2"
ONE, TWO = BUILD.format("one"), BUILD.format("two")
SCENARIOS: dict[str, list[str | Place]] = {
    "analyze": [
        results, "analyze .", "analyze . --convention paper", "analyze . --compare",
        "analyze . --by-pretraining", "analyze . --convention papre",
    ],
    "analyze-nothing": ["analyze ."],
    "analyze-damaged": [damaged, "analyze ."],
    "analyze-hostile": [hostile, "analyze . --compare"],
    "analyze-study": [lambda place: fake(place, convention="paper"), "analyze study"],
    "claims-paper": [
        papers, "claims --paper --only C23", "claims --paper --convention standard --only C23",
        "claims --paper --only C01", "claims --paper --only C18 --details",
        "claims results --only C16 --only C05", "claims --paper --claims mine.py",
        "claims", "claims somewhere --paper", "claims --paper --only C1",
        "claims --paper --claims none.py", "claims nowhere",
    ],
    "claims-study": [
        lambda place: known(place, seeds=tuple(range(10))), "claims study",
        "claims study --convention paper --only C18",
    ],
    "claims-open": [lambda place: known(place, seeds=(0, 1)), "claims study --only C18"],
    "claims-missing": [
        lambda place: known(place, missing={("mlm", "pydocs-sc", 1e-4, 0)}),
        "claims study --only C18",
    ],
    "corpus": [
        texts, ONE, ONE, "corpus inspect one --max-seqlen 64 --samples 1",
        "corpus inspect one/heldout", "corpus verify one", TWO, "corpus merge one two --out both",
        "corpus verify both", "corpus merge one two/train --out none",
        "corpus merge one/train two/heldout --out odd", "corpus verify none",
        "corpus verify mine", "corpus inspect mine", "corpus merge mine --out out",
        "corpus build texts --out made --heldout-fraction 0.3 --vocab-size 300 --deduplicate",
    ],
    "corpus-unfinished": [
        texts, ONE, lambda place: (place / "one/built.json").unlink(), "corpus inspect one",
        "corpus verify one", "corpus verify one/train",
    ],
    "corpus-other-tokenizer": [texts, ONE, _others_tokenizer, "corpus inspect one"],
    "corpus-damaged": [
        texts, ONE, lambda place: flip(place / "one/heldout/tokens-00000.bin"), "corpus verify one",
        lambda place: flip(place / "one/train/tokens-00000.bin"), ONE,
        lambda place: (place / "one/tokenizer/tokenizer.json").unlink(), "corpus verify one",
    ],
    "corpus-refused": [
        texts, BUILD.format("nul"), BUILD.format("nul"), BUILD.format("twice"),
        f"{ONE} --against sst3", "corpus build a b --share 1 --out x",
        "corpus build --column x --out x", "corpus build one.jsonl b.TXT --column x --out x",
        "corpus build a --max-tokens=-1 --out x",
        lambda place: truncate(place / "given/tokenizer.json"), ONE,
    ],
    "tokenizer": [
        texts, "tokenizer train one.jsonl --column body --vocab-size 310 --out made",
        "tokenizer train one.jsonl --column body --vocab-size 310 --out made",
        "tokenizer train one.jsonl --column body --vocab-size 300 --out made",
        "tokenizer train texts --vocab-size 5000 --out words", "tokenizer check given", _no_mask,
        "tokenizer check plain", "tokenizer check texts",
    ],
    "tokenizer-refused": [
        texts, lambda place: (place / "made").mkdir(), lambda place: (place / "e.txt").touch(),
        *(f"tokenizer train {words}" for words in (
            "finished.yaml --out x", "corpus.yaml --column body --out x", "none.txt --out x",
            "hf:a/b?nam=x --out x", "one.jsonl --out x", "e.txt --out x",
            "e.txt --column body --out x", "one.jsonl --column body --out made",
        )),
    ],
    "pairs": [
        pairs, "pairs build rows.jsonl --out pairs --quiet", "pairs inspect pairs",
        "pairs mine pairs --miner bm25 --out mined", "pairs build cats.csv --out cats --quiet",
        "pairs mine cats --miner bm25 --negatives 2 --margin 1 --out more", "pairs build --out x",
        "pairs build bad.csv --out x", "pairs inspect none",
    ],
    "study": [
        studies, "study plan smoke.yaml --graph smoke.mmd --rate 1e9", "study plan smoke.yaml",
        "study plan smoke.yaml --set 'finetuning.seeds=[0, 1, 2]'",
        "study diff smoke.yaml mine.yaml", "study plan none.yaml",
        "study diff smoke.yaml none.yaml", "study plan none.yaml --graph plan.png",
        "study plan smoke.yaml --set tasks.0.name=pydocs-sx",
        "study run smoke.yaml --per-gpu 2 --root root", "study run file.yaml --rot x",
        "pretrain smoke.yaml", "pretrain recipe.yaml --compute processes",
        "pretrain recipe.yaml --threads 1 --compute processes=2",
        "merge a b --out out --group 0=0.3 --group 0=0.4",
    ],
    "usage": [
        studies,
        "finetune model --task sc:x", "finetune model --out x", "encode model x.txt",
        "encode model x.txt --out x.npy --max-seqlen 2", "predict model",
        "export model out --precision half", "claims --paper --no-details",
        *(f"{words} --device gpu" for words in (
            "pretrain recipe.yaml", "evaluate model --task sst2", "adapt model --corpus c --out o",
            "finetune model --task sst2 --out o", "encode model t.txt --out v.npy",
            "predict model t.txt",
        )),
    ],
}  # fmt: skip


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", SCENARIOS)
def test_commands_print_their_snapshot(
    run, tmp_path, monkeypatch, documents, tokenizer: TextTokenizer, name
):
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "documents.json").write_text(json.dumps(documents))
    write_tokenizer(tokenizer, tmp_path / "given")
    shown = []
    for step in SCENARIOS[name]:
        if isinstance(step, str):
            shown.append(printed(step, run(*shlex.split(step))))
        else:
            step(tmp_path)
    compare(f"commands/{name}", "\n".join(shown), tmp_path)
