"""The built-in tasks: formats, spans, tags, blanks, and no passage in two splits."""

import json
import random
from pathlib import Path

import pytest

from biphasic.data.text.near_duplicates import ShingleIndex, Shingler
from biphasic.errors import DataError
from biphasic.pydocs import tasks as builtin
from biphasic.pydocs.documents import Document, Split, body_of
from biphasic.pydocs.sections import Parameter, parse_sections, plain, sentences
from biphasic.pydocs.tasks import (
    MAX_CONTEXT_CHARACTERS,
    MAX_TOKENS,
    MIN_TOKENS,
    Example,
    LeakFilter,
    blank_names,
    blank_own_name,
    library_examples,
    library_labels,
    parameter_examples,
    parameter_questions,
    parse_documents,
    summary_examples,
    tag_parameter,
)
from biphasic.store import TASK
from tiny_use import read_jsonl

SPLITS: tuple[Split, ...] = ("train", "validation", "test")

NUMPYDOC = """\
Return the ``norm`` of a :class:`~lib.Matrix`. It has several kinds.

Longer prose, e.g. about *axes* and [`Links`] [1]_.

Parameters
----------
x : array_like, optional
    Input array. If `axis` is None, `x` must be 1-D.

    A second paragraph.
ord : {None, 'fro'}, default='fro'
    Order of the norm.
axis : int, optional (default: 0)
    The axis along which to compute. Defaults to 1.

Returns
-------
n : float or ndarray
    Norm of the matrix. Always positive.

See Also
--------
other : Something else.
"""
GOOGLE = """\
Runs the model.

Args:
    input_ids (`torch.Tensor` of shape `(batch, length)`, *optional*):
        Indices of the tokens
        in the vocabulary.
    scale (float): the factor to use. Default: ``1.0``.
    flag: whether to stop (default: True)

Returns:
    Tensor: the logits of each token.

Prose below the sections.
"""


def document_of(body: str, name: str = "m.f") -> Document:
    return Document(name, f"{name}(x)\n\n{body}", name.rpartition(".")[0], "lib", "train")


def vocabulary(seed: str) -> list[str]:
    """Words that no other seed has."""
    return [f"{seed}{letter}{other}q" for letter in "abcdefgh" for other in "klmnop"]


def synthetic_document(library: str, module: int, split: Split) -> Document:
    """A documented function whose words are its own."""
    name = f"{library}.m{split}{module}.compute"
    source = random.Random(name)  # noqa: S311
    custom = vocabulary(f"{library[0]}{split[:2]}{'ghijklmnopqr'[module]}")

    def say(count: int) -> str:
        return " ".join(source.choice(custom) for _ in range(count))

    body = (
        f"Compute {say(7)}. Then {say(9)}.\n\n"
        f"Parameters\n----------\n"
        f"alpha_value : float, default=0.5\n    The {say(8)}. More {say(5)}.\n"
        f"beta : int or None\n    Some {say(9)}.\n"
        f"gamma : bool, optional\n    Whether {say(7)}.\n\n"
        f"Returns\n-------\nout : float\n    The {say(6)}."
    )
    text = f"{name}(alpha_value=0.5, beta=None, gamma=False)\n\n{body}"
    return Document(name, text, name.rpartition(".")[0], library, split)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    counts: dict[Split, int] = {"train": 12, "validation": 4, "test": 5}
    return sorted(
        (
            synthetic_document(library, module, split)
            for library in ("torch", "numpy", "pandas")
            for split, count in counts.items()
            for module in range(count)
        ),
        key=lambda document: document.id,
    )


@pytest.fixture(scope="module")
def folder(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tasks")
    builtin.build_tasks(documents, out)
    return out


class TestSections:
    def test_numpydoc(self):
        found = parse_sections(NUMPYDOC)
        assert found.summary == "Return the norm of a lib.Matrix."
        assert found.prose[1] == "Longer prose, e.g. about axes and Links."
        assert found.parameters == (
            Parameter("x", "array_like", "", "Input array. If axis is None, x must be 1-D."),
            Parameter("ord", "{None, 'fro'}", "fro", "Order of the norm."),
            Parameter("axis", "int", "0", "The axis along which to compute. Defaults to 1."),
        )
        assert found.returns == "Norm of the matrix. Always positive."

    def test_google(self):
        found = parse_sections(GOOGLE)
        assert found.parameters == (
            Parameter(
                "input_ids",
                "torch.Tensor of shape (batch, length)",
                "",
                "Indices of the tokens in the vocabulary.",
            ),
            Parameter("scale", "float", "1.0", "the factor to use."),
            Parameter("flag", "", "True", "whether to stop"),
        )
        assert found.returns == "the logits of each token."
        assert found.prose == ("Runs the model.",)

    def test_markup_is_taken_out(self):
        marked = "Use :func:`~numpy.linalg.norm`, ``x``, **not** `y` or [this](http://a.b)."
        assert plain(marked) == "Use numpy.linalg.norm, x, not y or this."
        assert (
            plain("a * b * c and list[int] and **kwargs") == "a * b * c and list[int] and **kwargs"
        )

    def test_sentences_survive_abbreviations(self):
        text = "See e.g. Smith vs. Jones. The next one? Version 1.5 it is."
        assert sentences(text) == [
            "See e.g. Smith vs. Jones.",
            "The next one?",
            "Version 1.5 it is.",
        ]


class TestFolders:
    def test_are_complete_and_declare_themselves(self, folder):
        for kind in ("sc", "tc", "qa", "ir"):
            TASK.open(folder / f"pydocs-{kind}").verify()
            task = json.loads((folder / f"pydocs-{kind}" / "task.json").read_text())
            assert (task["name"], task["kind"]) == (f"pydocs-{kind}", kind)
            assert set(task) == {"name", "kind", "title", "metric"}

    def test_are_a_function_of_the_documents(self, documents, folder, tmp_path):
        builtin.build_tasks(list(reversed(documents)), tmp_path)
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            again = tmp_path / path.relative_to(folder)
            assert again.read_bytes() == path.read_bytes(), path

    @pytest.mark.parametrize("kind", ["sc", "tc", "qa"])
    def test_examples_come_from_their_own_split(self, documents, folder, kind):
        split_of = {document.id: document.split for document in documents}
        seen: set[str] = set()
        for split in SPLITS:
            found = read_jsonl(folder / f"pydocs-{kind}" / f"{split}.jsonl")
            assert len(found) == sum(each == split for each in split_of.values())
            assert {split_of[row["id"]] for row in found} == {split}
            texts = {
                json.dumps(row.get("text") or row.get("tokens") or row["context"]) for row in found
            }
            assert seen.isdisjoint(texts)
            seen |= texts

    def test_no_example_for_a_split_is_an_error(self, tmp_path):
        only = [synthetic_document("torch", place, "train") for place in range(3)]
        with pytest.raises(DataError, match=r"pydocs-sc: .* no test example"):
            builtin.build_tasks(only, tmp_path)

    def test_limits_hold(self, documents, tmp_path, monkeypatch):
        monkeypatch.setattr(builtin, "LIMITS", {"train": 6, "validation": 2, "test": 3})
        builtin.build_tasks(documents, tmp_path)
        train = read_jsonl(tmp_path / "pydocs-sc" / "train.jsonl")
        assert sorted(row["label"] for row in train) == [0, 0, 1, 1, 2, 2]  # libraries in turn
        assert len(read_jsonl(tmp_path / "pydocs-qa" / "test.jsonl")) == 3


class TestLeaks:
    LONG = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi"

    def example(self, name: str, split: Split, passage: str, **fields: tuple[str, ...]) -> Example:
        keys = fields.get("keys", (name,))
        return Example(name, split, {}, (passage,), keys)

    def filter(self, *texts: tuple[str, Split]) -> LeakFilter:
        documents = (
            Document(f"m.f{place}", f"m.f{place}\n\n{text}", "m", "lib", split)
            for place, (text, split) in enumerate(texts)
        )
        return LeakFilter(parse_documents(documents))

    def test_select_refuses_them(self):
        leaking, custom = self.example("a", "test", self.LONG), self.example("b", "test", "Own.")
        limits: dict[Split, int] = dict.fromkeys(SPLITS, 2)
        chosen = self.filter((self.LONG, "train")).select([leaking, custom], limits=limits)
        assert chosen["test"] == [custom]

    def test_short_passages_are_compared_whole(self):
        leak_filter = self.filter(("Long first sentence. Return the mean.", "train"))
        assert leak_filter.leaks(self.example("t", "test", "return the mean"))
        assert not leak_filter.leaks(self.example("t", "test", "Return the mean value."))
        assert not leak_filter.leaks(self.example("n", "train", "Return the mean."))

    def test_a_passage_of_another_split_is_refused_in_both_directions(self):
        leak_filter = self.filter((f"Start. ``{self.LONG}`` end.", "train"), ("other", "test"))
        assert leak_filter.leaks(self.example("t", "test", self.LONG))
        assert leak_filter.leaks(self.example("v", "validation", self.LONG))
        assert not leak_filter.leaks(self.example("n", "train", self.LONG))
        leak_filter = self.filter((self.LONG, "test"))
        assert leak_filter.leaks(self.example("n", "train", self.LONG))

    def test_half_is_too_much(self):
        leak_filter = self.filter((self.LONG, "train"))
        half = " ".join(self.LONG.split()[:10])
        assert leak_filter.leaks(self.example("t", "test", f"{half} one two three"))
        assert not leak_filter.leaks(self.example("t", "test", f"{half} one two three four"))

    def test_texts_are_unique_and_the_held_out_one_stays(self):
        same = {"keys": ("The same: text.",)}
        examples = [
            self.example("a", "train", "a", keys=("the same text",)),
            self.example("b", "validation", "b", **same),
            self.example("c", "test", "c", **same),
            self.example("d", "test", "d", **same),
            self.example("e", "train", "e"),
        ]
        limits: dict[Split, int] = dict.fromkeys(SPLITS, 9)
        chosen = self.filter(("x", "train")).select(examples, limits=limits)
        assert [len(chosen[split]) for split in SPLITS] == [1, 0, 1]
        assert [example.id for example in chosen["train"]] == ["e"]

    def test_boilerplate_parameters_never_reach_the_held_out_tasks(self, documents):
        boilerplate = (
            "random_state : int, RandomState instance or None, default=None\n"
            "    Determines random number generation. Pass an int for reproducible output across"
            " multiple function calls.\n"
        )
        spoiled = [
            Document(
                d.id,
                d.text.replace("----------\n", f"----------\n{boilerplate}", 1),
                d.module,
                d.library,
                d.split,
            )
            for d in documents
        ]
        leak_filter = LeakFilter(parse_documents(spoiled))
        found = list(parameter_examples(parse_documents(spoiled)))
        assert all("random_state" in example.record["tokens"] for example in found)
        assert all(leak_filter.leaks(example) for example in found)
        asked = [
            example
            for example in parameter_questions(parse_documents(spoiled))
            if "random_state" in example.record["question"]
        ]
        assert asked
        assert all(leak_filter.leaks(example) for example in asked)

    def test_written_texts_do_not_stand_in_other_splits(self, documents, folder):
        shingler = Shingler()
        train = ShingleIndex(shingler(body_of(d)) for d in documents if d.split != "test")
        for row in read_jsonl(folder / "pydocs-qa" / "test.jsonl"):
            assert train.containment(shingler(row["context"])) < 0.5


class TestLibraries:
    def test_names_are_blanked(self):
        text = (
            "Wraps NumPy arrays (np.ndarray or pd.Series) for PyTorch. See sum() and my_helper,"
            " GroupBy, scikit-learn, conv2d, scipy, Matplotlib. The norm of linalg is not normal."
        )
        blanked = blank_names(text, name="numpy.linalg.norm")
        for name in ("NumPy", "np.", "pd.", "Series", "PyTorch", "sum(", "my_helper", "GroupBy"):
            assert name not in blanked
        for name in ("scikit", "learn", "scipy", "Matplotlib", "conv2d", "linalg", " norm "):
            assert name not in blanked
        assert blanked.startswith("Wraps _ arrays (")
        assert "is not normal." in blanked

    def test_labels_and_texts(self, folder):
        labels = json.loads((folder / "pydocs-sc" / "labels.json").read_text())
        assert labels == ["numpy", "pandas", "torch"]
        for split in SPLITS:
            for row in read_jsonl(folder / "pydocs-sc" / f"{split}.jsonl"):
                assert row["id"].startswith(labels[row["label"]] + ".")
                assert set(row) == {"id", "text", "label"}
                assert "alpha_value" not in row["text"]  # prose, no parameters

    def test_only_libraries_with_a_label_are_used(self, documents):
        parsed = parse_documents(documents)
        assert library_labels(parsed) == ["numpy", "pandas", "torch"]
        found = list(library_examples(parsed, ["torch"]))
        assert {example.group for example in found} == {"torch"}


class TestTags:
    def test_an_entry_in_running_text(self):
        entry = Parameter("copy_x", "bool or None", "None", "If True, X is copied (else not).")
        forms = {tuple(tag_parameter(entry, key=str(place))) for place in range(30)}
        head = (("copy_x", "B-NAME"), ("bool", "B-TYPE"), ("or", "I-TYPE"), ("None", "I-TYPE"))
        tail = tuple((word, "O") for word in ["If", "True", "X", "is", "copied", "else", "not"])
        value = ("None", "B-DEFAULT")
        cues = [(), (("default", "O"),), (("defaults", "O"), ("to", "O"))]
        assert forms == {(*head, *cue, value, *tail) for cue in cues}

    def test_unsuitable_entries_are_left_out(self):
        assert tag_parameter(Parameter("x", "int", "", ""), key="k") == []
        assert tag_parameter(Parameter("x", "a " * 11, "", "Text."), key="k") == []

    def test_files_are_strict_bio2_of_bounded_length(self, folder):
        labels = json.loads((folder / "pydocs-tc" / "labels.json").read_text())
        assert labels[0] == "O"
        for split in SPLITS:
            for row in read_jsonl(folder / "pydocs-tc" / f"{split}.jsonl"):
                assert len(row["tokens"]) == len(row["tags"])
                assert MIN_TOKENS <= len(row["tokens"]) <= MAX_TOKENS
                assert set(row["tags"]) <= set(labels)
                assert not any(set(token) & set(":(),;\n ") for token in row["tokens"])
                for before, tag in zip(["O", *row["tags"]], row["tags"], strict=False):
                    assert not tag.startswith("I-") or before[2:] == tag[2:]

    def test_short_sections_are_left_out(self):
        body = "Sum.\n\nParameters\n----------\nx : int\n    One of few words.\n"
        assert list(parameter_examples(parse_documents([document_of(body)]))) == []

    def test_no_entity_is_cut(self):
        entries = "".join(
            f"p{place} : one two three four five six seven eight nine\n    Some text.\n"
            for place in range(9)
        )
        for extra in range(12):
            first = f"first : int\n    {'word ' * (20 + extra)}\n"
            body = f"Sum.\n\nParameters\n----------\n{first}{entries}"
            (example,) = parameter_examples(parse_documents([document_of(body)]))
            tags = example.record["tags"]
            assert len(tags) <= MAX_TOKENS
            runs = " ".join(tags).split("B-TYPE")[2:]
            assert all(run.split().count("I-TYPE") == 8 for run in runs)


class TestQuestions:
    def test_answers_stand_where_they_should(self, folder):
        for split in SPLITS:
            for row in read_jsonl(folder / "pydocs-qa" / f"{split}.jsonl"):
                assert set(row) == {"id", "question", "context", "answers"}
                (text,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
                assert row["context"][start : start + len(text)] == text
                assert text

    def test_every_kind_of_question_has_its_answer(self):
        parsed = parse_sections(NUMPYDOC)
        by_name = {parameter.name: parameter for parameter in parsed.parameters}
        seen = set()
        for place in range(60):
            document = document_of(NUMPYDOC, f"m{place}.norm")
            (example,) = parameter_questions(parse_documents([document]))
            question = example.record["question"]
            answer = example.record["answers"]["text"][0]
            start = example.record["answers"]["answer_start"][0]
            line = example.record["context"][:start].rpartition("\n")[2]
            assert "norm" in question
            if "return" in question or "result" in question:
                seen.add("returns")
                assert (answer, line) == ("Norm of the matrix", "Returns: ")
                continue
            (target,) = (n for n in by_name if f" {n} " in question.replace("?", " "))
            assert line.startswith(target)
            if "type" in question:
                seen.add("type")
                assert answer == by_name[target].type
            elif "default" in question or "omitted" in question:
                seen.add("default")
                assert answer == by_name[target].default
            else:
                seen.add("description")
                assert by_name[target].description.startswith(f"{answer}.")
        assert seen == {"returns", "type", "default", "description"}

    def test_of_two_parameters_with_one_name_the_first_counts(self):
        entries = "x : int\n    The first of both.\ny : int\n    Another one here.\n"
        again = "x : int\n    The second of both.\n"
        for place in range(20):
            body = f"Sum.\n\nParameters\n----------\n{entries}{again}"
            document = document_of(body, f"m{place}.f")
            (example,) = parameter_questions(parse_documents([document]))
            assert "second" not in example.record["context"]

    def test_contexts_are_bounded_and_hold_several_parameters(self):
        entries = "".join(f"p{n} : int\n    Text {n} {'word ' * 30}.\n" for n in range(30))
        body = f"Sum.\n\nParameters\n----------\n{entries}"
        (example,) = parameter_questions(parse_documents([document_of(body)]))
        context = example.record["context"]
        assert MAX_CONTEXT_CHARACTERS / 2 < len(context) <= MAX_CONTEXT_CHARACTERS
        assert context.count(" (int): ") >= 2


class TestRetrieval:
    def test_every_query_has_its_document(self, documents, folder):
        folder = folder / "pydocs-ir"
        corpus = {row["_id"]: row for row in read_jsonl(folder / "corpus.jsonl")}
        queries = {row["_id"]: row["text"] for row in read_jsonl(folder / "queries.jsonl")}
        split_of = {document.id: document.split for document in documents}
        judged = []
        for split in SPLITS:
            lines = (folder / "qrels" / f"{split}.tsv").read_text().splitlines()
            assert lines[0] == "query-id\tcorpus-id\tscore"
            for query, answer, score in (line.split("\t") for line in lines[1:]):
                assert split_of[answer] == split
                assert score == "1"
                assert queries[query].rstrip(".") not in corpus[answer]["text"]
                judged.append(query)
        assert sorted(judged) == sorted(queries)
        assert len(corpus) == len(documents)
        assert all(set(row) == {"_id", "title", "text"} for row in corpus.values())

    def test_the_name_is_blanked(self):
        assert blank_own_name("Norm of x: np.norm(x), normal.", name="lib.norm") == (
            "_ of x: _(x), normal."
        )

    def test_a_document_that_repeats_its_summary_is_left_out(self):
        summary = "Compute the sum of all given values."
        body = f"{summary} In short: {summary} {'More words follow here. ' * 10}"
        assert list(summary_examples(parse_documents([document_of(body)]))) == []
