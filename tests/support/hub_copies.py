"""Miniature local copies of the study's datasets, in the hub's layout and public columns.

Sources: the datasets' pages on the hub, BEIR's and MLDR's own archives, and the study's public
loading code; `evidence/paper/README.md` says what is not public.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, Features, List, Value

NUM_TRAIN = 40
NUM_TEST = 6
NUM_PAIRS = 30
NUM_NQ_QUERIES = 7

TEXT = Value("string")
TAGS = {
    "conll2003-en": ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"),
    "uner_en": ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"),
}
GLUE_LABELS = {
    "mnli": ("entailment", "neutral", "contradiction"),
    "qqp": ("not_duplicate", "duplicate"),
    "sst2": ("negative", "positive"),
}
GLUE_COLUMNS = {
    "mnli": ("premise", "hypothesis"),
    "qqp": ("question1", "question2"),
    "sst2": ("sentence",),
}


def write_dataset(
    folder: Path,
    splits: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
    features: Features | None,
) -> Path:
    """Write Parquet files by configuration and split, and the README that lists them."""
    configs: dict[str, list[str]] = {}
    for (config, split), rows in splits.items():
        name = f"{config}/{split}-00000-of-00001.parquet"
        (folder / config).mkdir(parents=True, exist_ok=True)
        columns = {column: [row[column] for row in rows] for column in rows[0]}
        table = Dataset.from_dict(columns, features=features)
        pq.write_table(table.data.table, folder / name)
        entry = f"  - split: {split}\n    path: {config}/{split}-*\n"
        configs.setdefault(config, []).append(entry)
    listed = "".join(
        f"- config_name: {config}\n  data_files:\n{''.join(entries)}"
        for config, entries in configs.items()
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{listed}---\n", encoding="utf-8")
    return folder


def write_jsonl_gz(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write compressed JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def write_qrels(path: Path, rows: Iterable[tuple[str, str, int]]) -> None:
    """Write judgements as BEIR does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def glue(copies: Path) -> None:
    """MNLI, QQP and SST-2; test labels are -1, as published."""
    features, splits = {}, {}
    for config, names in GLUE_LABELS.items():
        parts = ("matched", "mismatched") if config == "mnli" else ("",)
        sizes = {"train": NUM_TRAIN}
        sizes |= {f"validation_{part}".strip("_"): NUM_TEST for part in parts}
        sizes |= {f"test_{part}".strip("_"): NUM_TEST for part in parts}
        features[config] = Features(
            {
                **dict.fromkeys(GLUE_COLUMNS[config], TEXT),
                "label": ClassLabel(names=list(names)),
                "idx": Value("int32"),
            }
        )
        for split, size in sizes.items():
            splits[config, split] = [
                {
                    **{name: f"{name} {split} {n}" for name in GLUE_COLUMNS[config]},
                    "label": -1 if split.startswith("test") else n % len(names),
                    "idx": n,
                }
                for n in range(size)
            ]
    folder = copies / "nyu-mll/glue"
    readme = ""
    for config in GLUE_LABELS:
        own = {key: rows for key, rows in splits.items() if key[0] == config}
        write_dataset(folder, own, features[config])
        readme += (folder / "README.md").read_text("utf-8").split("configs:\n")[1].split("---")[0]
    (folder / "README.md").write_text(f"---\nconfigs:\n{readme}---\n", encoding="utf-8")


def conll2003(copies: Path) -> None:
    """CoNLL-2003 in IOB1, as published: an entity begins with `I-` unless it touches another."""
    sentence = {
        "words": ["EU", "rejects", "German", "call", "Peter", "Blackburn", "Anna"],
        "ner": [4, 0, 8, 0, 2, 2, 1],
    }
    _tagged(copies / "hgissbkh/conll2003-en", sentence, "words", "ner", TAGS["conll2003-en"])


def ontonotes5(copies: Path) -> None:
    """OntoNotes 5 with bare numbers as tags, as T-NER publishes it."""
    sentence = {
        "tokens": ["says", "Phil", "Rosen", "of", "Fleet", "Inc.", "."],
        "tags": [0, 4, 5, 0, 11, 12, 0],
    }
    _tagged(copies / "hgissbkh/ontonotes5", sentence, "tokens", "tags", None)


def uner_en(copies: Path) -> None:
    """UNER English: words and tags among other columns."""
    sentence = {
        "idx": "weblog-1",
        "text": "Al visits Bonn .",
        "tokens": ["Al", "visits", "Bonn", "."],
        "ner_tags": [1, 0, 5, 0],
        "annotator": ["a", "a", "a", "a"],
    }
    _tagged(copies / "hgissbkh/uner_en", sentence, "tokens", "ner_tags", TAGS["uner_en"])


def _tagged(
    folder: Path, sentence: dict[str, Any], words: str, tags: str, names: tuple[str, ...] | None
) -> None:
    number = ClassLabel(names=list(names)) if names else Value("int32")
    columns: dict[str, Any] = {name: TEXT for name in ("idx", "text") if name in sentence}
    columns |= {words: List(TEXT), tags: List(number)}
    if "annotator" in sentence:
        columns["annotator"] = List(TEXT)
    splits = {
        ("default", split): [
            {**sentence, words: [f"{split}{n}", *sentence[words][1:]]} for n in range(size)
        ]
        for split, size in (("train", 9), ("validation", 3), ("test", 4))
    }
    write_dataset(folder, splits, Features(columns))


def squad(copies: Path) -> None:
    """SQuAD: every question has answers."""
    _questions(copies / "rajpurkar/squad", "plain_text", has_unanswerable=False)


def squad_v2(copies: Path) -> None:
    """SQuAD v2: every third question has none."""
    _questions(copies / "rajpurkar/squad_v2", "squad_v2", has_unanswerable=True)


def _questions(folder: Path, config: str, *, has_unanswerable: bool) -> None:
    def row(split: str, n: int) -> dict[str, Any]:
        context = f"In {1900 + n}, the town of {split.title()} was built."
        found = [] if has_unanswerable and n % 3 == 0 else [str(1900 + n)]
        return {
            "id": f"56be{split}{n}",
            "title": "Town",
            "context": context,
            "question": f"When was {split} {n} built?",
            "answers": {"text": found, "answer_start": [3] * len(found)},
        }

    answers = {"text": List(TEXT), "answer_start": List(Value("int32"))}
    columns = {**dict.fromkeys(("id", "title", "context", "question"), TEXT), "answers": answers}
    splits = {
        (config, split): [row(split, n) for n in range(size)]
        for split, size in (("train", NUM_TRAIN), ("validation", NUM_TEST))
    }
    write_dataset(folder, splits, Features(columns))


PASSAGE = "Anna met Bob in Rome. Bob left.\n@highlight\nAnna stayed in Rome"


def record(copies: Path) -> None:
    """ReCoRD as extractive question answering, without ids."""
    answers = {"text": List(TEXT), "answer_start": List(Value("int32"))}
    rows = [
        {
            "question": f"{n}: @placeholder left first",
            "context": PASSAGE,
            "answers": {"text": ["Bob", "Bob"], "answer_start": [9, 22]},
        }
        for n in range(NUM_TRAIN)
    ]
    splits = {("default", "train"): rows, ("default", "validation"): rows[:NUM_TEST]}
    columns = {"question": TEXT, "context": TEXT, "answers": answers}
    write_dataset(copies / "hgissbkh/record", splits, Features(columns))


def record_of_superglue(copies: Path) -> None:
    """ReCoRD in the columns of SuperGLUE: entities with spans, answers as names."""
    spans = {"text": List(TEXT), "start": List(Value("int32")), "end": List(Value("int32"))}
    rows = [
        {
            "passage": PASSAGE,
            "query": f"{n}: @placeholder left first",
            "entities": ["Anna", "Bob", "Rome"],
            "entity_spans": {
                "text": ["Anna", "Bob", "Rome", "Bob"],
                "start": [0, 9, 16, 22],
                "end": [4, 12, 20, 25],
            },
            "answers": ["Bob"],
        }
        for n in range(NUM_TRAIN)
    ]
    splits = {("default", "train"): rows, ("default", "validation"): rows[:NUM_TEST]}
    columns = {"passage": TEXT, "query": TEXT, "entities": List(TEXT), "entity_spans": spans}
    features = Features({**columns, "answers": List(TEXT)})
    write_dataset(copies / "hgissbkh/record", splits, features)


def msmarco(copies: Path) -> None:
    """MS MARCO: pairs to train on; BEIR's corpus, of which seven documents are judged."""
    pairs = [
        {"query": f"question {n // 2}", "positive": f"passage {n % 20}", "subset": "a"}
        for n in range(NUM_PAIRS)
    ]
    columns = dict.fromkeys(("query", "positive", "subset"), TEXT)
    write_dataset(
        copies / "hgissbkh/msmarco-pairs", {("default", "train"): pairs}, Features(columns)
    )
    folder = copies / "BeIR/msmarco"
    beir_texts(folder, num_documents=50, num_queries=12, prefix="")
    (folder / "msmarco.py").write_text("import datasets\n")
    qrels = {
        "train": [("9", "40", 1)],
        "validation": [("0", "1", 1), ("1", "2", 1), ("1", "3", 1)],
        "test": [("2", "4", 3), ("2", "5", 0), ("3", "6", 2), ("3", "7", 1)],
    }
    for split, rows in qrels.items():
        write_qrels(copies / f"BeIR/msmarco-qrels/{split}.tsv", rows)


def blimp(copies: Path) -> None:
    """BLiMP: a configuration for each paradigm, in no order; its README lists them."""
    columns = {
        "sentence_good": TEXT, "sentence_bad": TEXT, "field": TEXT, "linguistics_term": TEXT,
        "UID": TEXT, "lexically_identical": Value("bool"), "pair_id": Value("int32"),
    }  # fmt: skip
    splits = {
        (paradigm, "train"): [
            {
                **dict.fromkeys(columns, paradigm),
                "sentence_good": f"{paradigm} {n} is right",
                "sentence_bad": f"{paradigm} {n} right is",
                "lexically_identical": True,
                "pair_id": n,
            }
            for n in range(size)
        ]
        for paradigm, size in (("passive_1", 3), ("adjunct_island", 2))
    }
    write_dataset(copies / "nyu-mll/blimp", splits, Features(columns))


def nq(copies: Path) -> None:
    """NQ: judgements of a test split only."""
    beir_texts(copies / "BeIR/nq", num_documents=30, num_queries=10, prefix="x")
    rows = [(f"xq{n}", f"xd{2 * n}", 1) for n in range(NUM_NQ_QUERIES)]
    write_qrels(copies / "BeIR/nq-qrels/test.tsv", [*rows, ("xq0", "xd1", 1)])


def beir_texts(folder: Path, *, num_documents: int, num_queries: int, prefix: str) -> None:
    """Write the corpus and queries of a BEIR dataset as its repository holds them."""
    document, query = (f"{prefix}d", f"{prefix}q") if prefix else ("", "")
    write_jsonl_gz(
        folder / "corpus.jsonl.gz",
        (
            {"_id": f"{document}{n}", "title": f"Title {n}" if prefix else "", "text": f"body {n}"}
            for n in range(num_documents)
        ),
    )
    write_jsonl_gz(
        folder / "queries.jsonl.gz",
        ({"_id": f"{query}{n}", "text": f"asked {n}"} for n in range(num_queries)),
    )


def mldr(copies: Path) -> None:
    """MLDR English: queries with positive and negative passages, and a corpus of its own."""
    passages = List({"docid": TEXT, "text": TEXT})

    def row(split: str, n: int) -> dict[str, Any]:
        first = n + {"train": 0, "dev": 5, "test": 10}[split]
        return {
            "query_id": f"q-en-{split}{n}",
            "query": f"long question {split} {n}",
            "positive_passages": [{"docid": f"doc-en-{first}", "text": f"long text {first}"}],
            "negative_passages": [{"docid": "doc-en-19", "text": "long text 19"}],
        }

    judged = {
        ("default", split): [row(split, n) for n in range(size)]
        for split, size in (("train", 5), ("dev", 2), ("test", 3))
    }
    texts = dict.fromkeys(("query_id", "query"), TEXT)
    both = {"positive_passages": passages, "negative_passages": passages}
    folder = write_dataset(copies / "hgissbkh/mldr-en", judged, Features({**texts, **both}))
    readme = (folder / "README.md").read_text("utf-8").removesuffix("---\n")
    corpus = [{"docid": f"doc-en-{n}", "text": f"long text {n}"} for n in range(20)]
    columns = Features({"docid": TEXT, "text": TEXT})
    write_dataset(folder, {("corpus", "corpus"): corpus}, columns)
    added = (folder / "README.md").read_text("utf-8").split("configs:\n")[1]
    (folder / "README.md").write_text(readme + added, encoding="utf-8")


WRITERS: dict[str, Callable[[Path], None]] = {
    "mnli": glue,
    "qqp": glue,
    "sst2": glue,
    "conll2003": conll2003,
    "ontonotes5": ontonotes5,
    "uner_en": uner_en,
    "squad": squad,
    "squad_v2": squad_v2,
    "record": record,
    "msmarco": msmarco,
    "nq": nq,
    "blimp": blimp,
    "mldr": mldr,
}


def write_all(copies: Path) -> Path:
    """Write every copy once."""
    for write in dict.fromkeys(WRITERS.values()):
        write(copies)
    return copies
