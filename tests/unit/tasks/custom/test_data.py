from __future__ import annotations

import gzip
import json
import re

import pytest

from biphasic.errors import DataError
from biphasic.tasks.folder import TaskFile, load_task
from biphasic.tasks.kinds.examples import cut_splits
from biphasic.tasks.kinds.questions import Answer
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.records import SPLITS
from custom_tasks import (
    MOODS,
    QRELS,
    Store,
    at,
    jsonl,
    refused,
    write_beir,
    write_csv,
    write_splits,
    write_yaml,
)


def test_csv_tsv_and_jsonl_give_the_same_task(store, tmp_path):
    tasks = []
    for suffix in (".csv", ".tsv", ".jsonl"):
        folder = tmp_path / suffix.strip(".") / "mood"
        folder.mkdir(parents=True)
        for split in SPLITS:
            path = folder / f"{split}{suffix}"
            if suffix == ".csv":
                write_csv(path, ["text", "label"], MOODS)
            elif suffix == ".tsv":
                path.write_text(
                    "".join("\t".join(row) + "\n" for row in [("text", "label"), *MOODS])
                )
            else:
                path.write_text(jsonl(*({"text": text, "label": label} for text, label in MOODS)))
        tasks.append(store.task(f"sc:{folder}"))
    for task in tasks:
        assert task.labels == ("neg", "pos")
        texts = [(record.text, task.labels[record.answer]) for record in task.splits["test"]]
        assert texts == MOODS
    assert [record.id for record in tasks[0].splits["test"]] == ["2", "3", "4"]
    assert [record.id for record in tasks[2].splits["test"]] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "names", [("text_a", "text_b"), ("sentence1", "sentence2"), ("premise", "hypothesis")]
)
def test_pairs_under_their_usual_names(store, custom, names):
    rows = [dict(zip((*names, "label"), ("x", "y", label), strict=True)) for label in (0, 1)]
    write_splits(custom, ".jsonl", jsonl(*rows))
    task = store.task(f"sc:{custom}")
    assert task.labels == ("0", "1")
    assert task.splits["train"][0].text == "Sentence 1: x\nSentence 2: y"


def test_labels_json_gives_names_to_numbers(store, custom):
    write_splits(custom, ".csv", "text,label\na,0\nb,1\n")
    (custom / "labels.json").write_text('["no", "yes"]')
    assert store.task(f"sc:{custom}").labels == ("no", "yes")
    write_splits(custom, ".csv", "text,label\na,2\n", "test")
    refused(
        Store(custom / "s"),
        f"sc:{custom}",
        at(custom, "test.csv", 2) + "unknown label '2'; labels.json",
    )


def test_labels_of_the_task_file_go_before_labels_json(store, custom):
    write_splits(custom, ".csv", "text,label\na,no\nb,yes\n")
    (custom / "labels.json").write_text('["no", "yes"]')
    path = write_yaml(custom, "kind: sc\nfolder: .\nlabels: ['yes', 'no']\n")
    folder = store.folder_of(path)
    assert load_task(folder).labels == ("yes", "no")
    # What is not read decides nothing.
    (custom / "labels.json").write_text('["no", "other"]')
    assert store.folder_of(path) == folder


def test_columns_that_a_template_leaves_out_are_not_kept(store, custom):
    write_splits(custom, ".csv", "premise,hypothesis,label\na,b,x\nc,d,y\n")
    path = write_yaml(custom, "kind: sc\nfolder: .\ntemplate: '{text_b}!'\n")
    folder = store.folder_of(path)
    assert load_task(folder).splits["test"][0].text == "b!"
    row = json.loads((folder / "test.jsonl").read_text().splitlines()[0])
    assert row == {"id": "2", "text_b": "b", "label": 0}


def test_regression_reads_numbers_in_text(store, custom):
    write_splits(custom, ".tsv", "sentence1\tsentence2\tscore\na\tb\t2.5\nc\td\t-1e0\n")
    task = store.task(f"sr:{custom}")
    assert [record.answer for record in task.splits["test"]] == [2.5, -1.0]
    assert task.splits["test"][0].text == "Sentence 1: a\nSentence 2: b"


@pytest.mark.parametrize("value", ["nan", "1_000", "", "two", "1,5"])
def test_regression_refuses_what_is_no_number(store, custom, value):
    write_splits(
        custom, ".tsv", {"train": "text\tvalue\na\t1\n", "test": f"text\tvalue\na\t{value}\n"}
    )
    refused(store, f"sr:{custom}", at(custom, "test.tsv", 2) + f"'{value}' is not a number")


@pytest.mark.parametrize(
    ("suffix", "train", "test", "message"),
    [
        (
            ".csv",
            "text,label\na,x\nb,y\n",
            "text,label\na,x\nb,z\n",
            "test.csv:3: unknown label 'z'",
        ),
        (
            ".csv",
            "text,label\na,yes\nb,no\n",
            "text,label\na,0\n",
            "test.csv:2: the label 0 is a number, but the training split has names; list",
        ),
        (
            ".csv",
            "text, label\na,x\n",
            "",
            "train.csv:1: no column 'label'; there are 'text', ' label'",
        ),
        (
            ".csv",
            "a;label\nx;1\n",
            "",
            "train.csv:1: semicolons separate the columns; save the file with commas",
        ),
        (".csv", "text,label\na,0.5\nb,1\n", "", "train.csv:2: the label 0.5 is a fraction"),
        (".csv", "text,label\na,x\nb,y\n", "text,label\n", "test.csv: the test split is empty"),
        (".csv", "text,label\n", "", "train.csv: the train split is empty"),
        (".csv", "text,sentence,label\na,b,x\n", "", "columns text or sentence"),
        (".csv", "id,text,label\n1,a,x\n1,b,y\n", "", "train.csv:3: the id '1' is repeated"),
        (".jsonl", '{"text": "a", "label": "x"}\n{"text": "b"}\n', "", "jsonl:2: no field 'label'"),
        (".jsonl", '{"text": 3, "label": 1}\n{"text": "a", "label": 2}', "", "1: 'text' must be a"),
    ],
)
def test_bad_files_of_classification(custom, suffix, train, test, message):
    write_splits(custom, suffix, {"train": train, "test": test or train})
    refused(Store(custom / "store"), f"sc:{custom}", message)


@pytest.mark.parametrize("limits", ["", "limits: {train: 1}\n"])
def test_regression_needs_values_that_differ(store, custom, limits):
    train = "text,value\na,3\nb,4\n" if limits else "text,value\na,3\nb,3.0\n"
    write_splits(custom, ".csv", {"train": train})
    path = write_yaml(custom, f"kind: sr\nfolder: .\n{limits}")
    refused(
        store, path, f"^{re.escape(str(custom / 'train.csv'))}: all values of the training split"
    )


def test_an_empty_training_split_of_tagging_is_reported(store, custom):
    write_splits(custom, ".conll", {"train": "\n", "test": "a O\nb B-LOC\n"})
    refused(store, f"tc:{custom}", "train.conll: the train split is empty")


def test_ids_are_given_to_all_rows_or_to_none(store, custom):
    first, second = ({"text": name, "label": name} for name in "ab")
    write_splits(custom, ".jsonl", jsonl(first, second))
    write_splits(custom, ".jsonl", jsonl(first, second | {"id": 7}), "test")
    where = at(custom, "test.jsonl", 2)
    refused(store, f"sc:{custom}", where + "has the field 'id', but the first row has none")
    write_splits(custom, ".jsonl", jsonl(first | {"id": 7}, second), "test")
    refused(store, f"sc:{custom}", where + "no field 'id'")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (("text",), ("text_a", "text_b"), "has pairs of texts, but .*train.csv has single texts"),
        (("premise", "hypothesis"), ("text",), "has single texts, but .*train.csv has pairs"),
    ],
)
def test_all_splits_have_pairs_or_none(store, custom, train, test, message):
    for names, splits in ((train, ("train", "dev")), (test, ("test",))):
        for split in splits:
            rows = [[*names, "x"], [*names, "y"]]
            write_csv(custom / f"{split}.csv", [*names, "label"], rows)
    refused(store, f"sc:{custom}", at(custom, "test.csv", 2) + f"the test split {message}")


def test_a_task_file_has_all_settings(store, custom):
    header = ["headline", "body of text", "mood", "key"]
    rows = [[f"h{n}", f"b{n}", "neg" if n % 2 else "pos", f"k{n}"] for n in range(40)]
    write_csv(custom / "all.csv", header, rows)
    path = write_yaml(
        custom,
        """
kind: sc
name: news
title: The news
metric: macro_f1
train: all.csv
validation_fraction: 0.25
test_fraction: 0.2
seed: 3
limits: {train: 10}
columns: {text: [headline, body of text], label: mood, id: key}
template: "{text_a} - {text_b}"
labels: [pos, neg]
protocol: {max_steps: 7}
license: CC0
""",
    )
    folder = store.folder_of(path)
    task = load_task(folder)
    assert [task.num_examples(split) for split in SPLITS] == [10, 10, 8]
    record = task.splits["train"][0]
    number = record.id.removeprefix("k")
    assert record.text == f"h{number} - b{number}"
    assert task.labels == ("pos", "neg")
    head = KINDS["sc"].learner.head_fields(task, None, protocol=None)  # as in head.json
    assert head["columns"] == {"text_a": "headline", "text_b": "body of text"}
    assert record.answer == int(number) % 2
    described = json.loads((folder / "task.json").read_text())
    assert described["protocol"] == {"max_steps": 7}
    assert (described["license"], described["metric"]) == ("CC0", "macro_f1")
    assert described["origin"]["counts"] == {"train": 10, "validation": 10, "test": 8}
    assert "validation is 0.25 of the training split, chosen with seed 3" in store.said[1]
    assert described["origin"]["chosen"][2] == "train is limited to 10, chosen with seed 3"
    assert described["origin"]["files"]["train"]["name"] == "all.csv"
    assert str(custom) not in json.dumps(described)


def test_a_template_with_the_names_of_columns(store, custom):
    write_splits(
        custom, ".jsonl", jsonl(*({"a": "x", "b": "y", "c": "z", "label": n} for n in (0, 1)))
    )
    path = write_yaml(custom, "kind: sc\nfolder: .\ntemplate: '{b}/{a}'\n")
    folder = store.folder_of(path)
    assert load_task(folder).splits["test"][0].text == "y/x"
    row = json.loads((folder / "test.jsonl").read_text().splitlines()[0])
    assert row == {"id": "1", "a": "x", "b": "y", "label": 0}
    refused(
        Store(custom / "s"),
        write_yaml(custom, "kind: sc\nfolder: .\ntemplate: '{b}/{d}'\ncolumns: {text: a}\n"),
        "train.jsonl:1: no column 'd'; there are 'a', 'b', 'c', 'label'",
    )


def test_conll_files(store, custom):
    write_splits(custom, ".conll", "In IN O\nParis NNP B-LOC\n\nUN NNP B-ORG\n")
    task = store.task(f"tc:{custom}")
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
    assert task.splits["test"][0].words == ("In", "Paris")
    assert [record.id for record in task.splits["test"]] == ["1", "4"]


def test_files_of_universal_ner(store, custom):
    content = "# sent_id = a\n# text = Rome\n1\tRome\tB-LOC\t-\tx\n2\t!\tO\t-\tx\n"
    write_splits(custom, ".iob2", content, "en_ewt-ud-train", "en_ewt-ud-dev", "en_ewt-ud-test")
    record = store.task(f"tc:{custom}").splits["test"][0]
    assert (record.id, record.words) == ("a", ("Rome", "!"))


def test_tags_as_numbers_need_names(store, custom):
    write_splits(custom, ".jsonl", jsonl({"words": ["a", "b"], "ner": [0, 1]}))
    columns = "kind: tc\nfolder: .\ncolumns: {tokens: words, tags: ner}\n"
    refused(
        store, write_yaml(custom, columns), "train.jsonl:1: tag 0 at token 0 is a number; list the"
    )
    task = store.task(write_yaml(custom, columns + "labels: [O, B-X, I-X]\n"))
    assert task.splits["test"][0].tags == (0, 1)
    without = write_yaml(custom, columns + "labels: [B-X, I-X]\n")
    refused(Store(custom / "s"), without, "the task file: the tag 'O' is missing")


@pytest.mark.parametrize(
    ("suffix", "test", "message"),
    [
        (".conll", "a O\nb B-ORG\n", "test.conll:2: unknown label 'B-ORG' at token 1"),
        (".conll", "\na O\nb I-LOC\n", "test.conll:3: not valid BIO2: 'I-LOC'.*convert.* IOB1"),
        (".conll", "a O\n\nb S-LOC\n", "test.conll:3: not valid BIO2: 'S-LOC' at token 0"),
        (".bio", "a\tO\n\tO\n", "test.bio:2: token 1 is empty"),
        (".conll", "\n\n", "test.conll: the test split is empty"),
        (".jsonl", '{"tokens": ["a", ""], "tags": ["O", "O"]}', "jsonl:1: token 1 is empty"),
        (".jsonl", '{"tokens": ["a"], "tags": "O"}', "'tags' must be a list of texts"),
        (".jsonl", '{"tokens": ["a"]}', "no column 'tags'; there are 'tokens'"),
    ],
)
def test_bad_files_of_tagging(store, custom, suffix, test, message):
    train = "a O\nb B-LOC\n".replace(" ", "\t" if suffix == ".bio" else " ")
    if suffix == ".jsonl":
        train = jsonl({"tokens": ["a"], "tags": ["B-LOC"]})
    write_splits(custom, suffix, {"train": train, "test": test})
    refused(store, f"tc:{custom}", message)


def test_columns_of_conll_have_numbers_not_names(store, custom):
    write_splits(custom, ".txt", "B-X a\nO b\n")
    task = store.task(write_yaml(custom, "kind: tc\nfolder: .\ncolumns: {tokens: 2, tags: 1}\n"))
    assert task.splits["test"][0].words == ("a", "b")
    named = write_yaml(custom, "kind: tc\nfolder: .\ncolumns: {tokens: word}\n")
    refused(Store(custom / "s"), named, "train.txt: its columns have no names, so 'columns.tokens'")


def test_squad_files(store, custom):
    asked = {"id": "q", "question": "Who?", "answers": [{"text": "Anna", "answer_start": 7}]}
    paragraph = {"context": "It was Anna.", "qas": [asked]}
    content = json.dumps({"data": [{"paragraphs": [paragraph]}]})
    write_splits(custom, ".json", content, "train-v2.0", "dev-v2.0", "test-v2.0")
    assert store.task(f"qa:{custom}").splits["test"][0].answers == (Answer("Anna", 7),)


def test_questions_as_json_lines_in_both_forms(store, custom):
    row = {"question": "Who?", "context": "It was Anna."}
    listed = row | {"answers": [{"text": "Anna", "answer_start": 7}]}
    joined = row | {"answers": {"text": ["Anna"], "answer_start": [7]}}
    write_splits(custom, ".jsonl", jsonl(listed, joined, row | {"answers": []}))
    records = store.task(f"qa:{custom}").splits["test"]
    assert [record.answers for record in records] == [(Answer("Anna", 7),)] * 2 + [()]


def test_answers_by_characters_change_scores_and_the_hash_of_the_task(store, custom):
    answers = {"text": ["北京"], "answer_start": [2]}
    row = {"question": "哪里", "context": "我在北京大学", "answers": answers}
    write_splits(custom, ".jsonl", jsonl(row))
    tasks = [
        store.task(write_yaml(custom, f"kind: qa\nname: t{number}\nfolder: .\n{setting}"))
        for number, setting in enumerate(["", "tokens: characters\n"])
    ]
    words, characters = (KINDS["qa"].learner.score(task, "test", ["北京大"]) for task in tasks)
    assert words.metrics == {"f1": 0.0, "exact_match": 0.0}
    assert characters.metrics["f1"] == pytest.approx(2 * (2 / 3) / (2 / 3 + 1))
    assert len({task.info.sha256 for task in [*tasks, store.task(f"qa:{custom}")]}) == 2


def test_folders_of_beir(store, custom):
    write_beir(custom, "train", "dev", "test")
    task = store.task(f"ir:{custom}")
    assert task.corpus == {"d1": "Document: T. one", "2": "Document: two"}
    assert task.queries["q6"] == "Query: t6"
    assert task.qrels["test"] == {query: {"d1": 1} for query in ("q6", "q7", "q8")}
    bare = store.task(f"zs:{custom}")
    assert bare.corpus == {"d1": "T one", "2": "two"}
    assert set(bare.qrels) == {"validation", "test"}
    assert (task.info.name, bare.info.name) == ("mood", "mood-zs")


def test_packed_folders_of_beir_without_validation(store, custom):
    write_beir(custom, "train", "test")
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        path = custom / name
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    refused(store, f"ir:{custom}", r"no validation split \(qrels/validation.tsv or .*dev.tsv")
    assert set(store.task(f"zs:{custom}").qrels) == {"test"}
    task = store.task(write_yaml(custom, "kind: ir\nfolder: .\nvalidation_fraction: 0.34\n"))
    assert [task.num_examples(split) for split in SPLITS] == [2, 1, 3]


def test_retrieval_trained_on_another_task(store, custom):
    write_beir(custom, "train", "dev", "test")
    text = "kind: ir\nfolder: .\ntrained_on: other\ndocument_template: '{title}: {text}'\n"
    folder = store.folder_of(write_yaml(custom, text))
    task = load_task(folder)
    assert not (folder / "qrels" / "train.tsv").exists()
    assert (task.info.trained_on, set(task.qrels)) == ("other", {"validation", "test"})
    assert task.corpus["d1"] == "T: one"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("qrels/test.tsv", QRELS + "q99\td1\t1\n", "test.tsv:2: unknown query 'q99'"),
        ("qrels/test.tsv", "", "test.tsv:1: no header"),
        ("qrels/test.tsv", QRELS, "test.tsv:1: the header must be .* above judgements"),
        (
            "corpus.jsonl",
            '{"_id": "d1", "text": "x"}\n' * 2,
            "corpus.jsonl:2: the id 'd1' is repeated",
        ),
        ("corpus.jsonl", '{"id": "d1", "text": "x"}\n', "corpus.jsonl:1: no field '_id'"),
        ("queries.jsonl", "", "queries.jsonl: the file is empty"),
    ],
)
def test_bad_folders_of_beir(store, custom, file, content, message):
    write_beir(custom, "train", "dev", "test")
    (custom / file).write_text(content)
    refused(store, f"ir:{custom}", message)


ITEMS = list(range(100))


def cut(seed=0, *, fractions=None, limits=None, **splits):
    shares = {f"{split}_fraction": share for split, share in (fractions or {}).items()}
    file = TaskFile(kind="sc", seed=seed, limits=limits or {}, **shares)
    return cut_splits(splits, file, where="t.yaml")


def test_missing_splits_come_out_of_train_and_keep_the_order():
    parts = cut(train=ITEMS, fractions={"validation": 0.1, "test": 0.25})
    assert {split: len(items) for split, items in parts.items()} == {
        "validation": 10,
        "test": 25,
        "train": 65,
    }
    assert sorted(parts["train"] + parts["validation"] + parts["test"]) == ITEMS
    assert all(items == sorted(items) for items in parts.values())
    # Not simply the first or the last ones.
    assert parts["validation"][-1] - parts["validation"][0] > 50


def test_the_choice_follows_the_seed():
    fractions = {"validation": 0.2}
    first = cut(train=ITEMS, fractions=fractions)
    assert first == cut(train=ITEMS, fractions=fractions)
    assert first != cut(1, train=ITEMS, fractions=fractions)


def test_the_test_split_does_not_depend_on_the_validation_split():
    alone = cut(train=ITEMS, fractions={"test": 0.2})
    assert cut(train=ITEMS, fractions={"test": 0.2, "validation": 0.3})["test"] == alone["test"]


def test_limits_choose_at_random_and_a_larger_one_keeps_the_smaller():
    small = cut(train=ITEMS, test=ITEMS, limits={"train": 10})
    large = cut(train=ITEMS, test=ITEMS, limits={"train": 20, "test": 500})
    assert len(small["train"]) == 10
    assert small["test"] == large["test"] == ITEMS
    assert set(small["train"]) < set(large["train"])
    assert small["train"] == sorted(small["train"]) != ITEMS[:10]


def test_a_split_that_would_be_empty():
    with pytest.raises(DataError, match=r"t\.yaml: .* no example for validation"):
        cut(train=[1, 2, 3], fractions={"validation": 0.1})
    with pytest.raises(DataError, match="no example for train"):
        cut(train=[1, 2], fractions={"validation": 0.5, "test": 0.49})


REPEATED = '{"text": "x", "label": "a", "label": "b"}\n{"text": "y", "label": "a"}'
REPEATED_IN = {
    "rows": ("sc", {f"{split}.jsonl": REPEATED for split in SPLITS}, "train.jsonl:1"),
    "labels": (
        "sc",
        {
            f"{split}.jsonl": '{"text": "x", "label": 0}\n{"text": "y", "label": 1}'
            for split in SPLITS
        }
        | {"labels.json": '{"0": "a", "1": "b", "1": "c"}'},
        "labels.json",
    ),
    "squad": (
        "qa",
        {
            f"{split}.json": '{"data": [{"paragraphs": [{"context": "Anna", "qas": [{"id": "1", '
            '"question": "Who?", "question": "What?", "answers": [{"text": "Anna", '
            '"answer_start": 0}]}]}]}]}'
            for split in SPLITS
        },
        "train.json",
    ),
    "documents": (
        "zs",
        {
            "corpus.jsonl": '{"_id": "d", "text": "x", "text": "y"}',
            "queries.jsonl": '{"_id": "q", "text": "x"}',
            "qrels/test.tsv": f"{QRELS}q\td\t1\n",
        },
        "corpus.jsonl:1",
    ),
}


@pytest.mark.parametrize("place", REPEATED_IN)
def test_a_json_key_that_is_repeated_is_refused(store, custom, place):
    kind, files, where = REPEATED_IN[place]
    for name, content in files.items():
        (custom / name).parent.mkdir(exist_ok=True)
        (custom / name).write_text(content)
    with pytest.raises(DataError, match=re.escape(where)):
        store.task(f"{kind}:{custom}")


@pytest.mark.parametrize(
    ("kind", "suffix", "lines"),
    [
        ("sc", "tsv", ["text\tlabel", "x\ta", "y\tb"]),
        ("ml", "csv", ["text,labels", "x,a", "y,b"]),
        ("mp", "csv", ["sentence_good,sentence_bad", "It is.", "It are."]),
    ],
)
def test_a_header_that_is_repeated_is_refused(store, custom, kind, suffix, lines):
    header, *rows = lines
    rows = [",".join(rows)] if kind == "mp" else rows
    for split in SPLITS:
        (custom / f"{split}.{suffix}").write_text("\n".join([header, *rows, header, ""]))
    with pytest.raises(
        DataError, match=rf"(train|validation)\.{suffix}:{len(rows) + 2}: the header"
    ):
        store.task(f"{kind}:{custom}")


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("sc", {"label": "a"}),
        ("ml", {"labels": ["a", "b"]}),
        ("tc", {"tokens": ["x"], "tags": ["B-LOC"]}),
        ("qa", {"question": "q", "context": "c", "answers": []}),
    ],
)
def test_rows_may_name_a_cluster(store, custom, kind, row):
    rows = [{"text": name, **row} for name in "xyz"]
    rows[1] |= {"label": "b"} if kind == "sc" else {}
    write_splits(custom, ".jsonl", jsonl(*rows))
    assert store.task(f"{kind}:{custom}").info.clusters == {}
    own = [row | {"cluster": name} for row, name in zip(rows, ("d1", "d1", 2), strict=True)]
    write_splits(custom, ".jsonl", jsonl(*own), "test")
    assert store.task(f"{kind}:{custom}").info.clusters == {
        "test": {"1": "d1", "2": "d1", "3": "2"}
    }


def test_the_column_of_clusters_may_have_another_name(store, custom):
    write_splits(custom, ".csv", "text,label,document\nx,a,d1\ny,b,d1\n")
    path = write_yaml(custom, "kind: sc\nfolder: .\ncolumns: {cluster: document}\n")
    task = store.task(path)
    both = {"2": "d1", "3": "d1"}
    assert task.info.clusters == {"validation": both, "test": both}
    assert [example.text for example in task.splits["test"]] == ["x", "y"]


def test_a_cluster_that_a_template_reads_is_text(store, custom):
    write_splits(custom, ".csv", "text,label,cluster\nx,a,\ny,b,d1\n")
    path = write_yaml(custom, 'kind: sc\nfolder: .\ntemplate: "{cluster}: {text}"\n')
    task = store.task(path)
    assert task.info.clusters == {}
    assert [example.text for example in task.splits["test"]] == [": x", "d1: y"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"cluster": "d"}, "has the field 'cluster', but the first row has none"),
        ({"cluster": "d"}, {}, "no field 'cluster'"),
        ({"cluster": "d"}, {"cluster": ""}, "rows with and without a 'cluster'"),
        ({"cluster": ""}, {"cluster": "d"}, "rows with and without a 'cluster'"),
        ({"cluster": "d"}, {"cluster": 0.5}, "'cluster' must be a text or a whole number, not 0.5"),
    ],
)
def test_clusters_are_given_to_all_rows_or_to_none(store, custom, first, second, message):
    rows = [{"text": name, "label": name} for name in "ab"]
    write_splits(custom, ".jsonl", jsonl(*rows))
    write_splits(custom, ".jsonl", jsonl(rows[0] | first, rows[1] | second), "test")
    refused(store, f"sc:{custom}", at(custom, "test.jsonl", 2) + message)
