"""The built-in corpus: sources are parsed, cleaned, split by module; no split quotes another."""

import sys
from pathlib import Path

import pytest

from biphasic.data.text.near_duplicates import ShingleIndex, Shingler
from biphasic.pydocs import documents as pydocs
from biphasic.pydocs.documents import (
    MAX_SIGNATURE_CHARACTERS,
    Document,
    Split,
    find_modules,
    read_docstrings,
)

PROSE = (
    "Compute the weighted mean of the given values. The weights are divided by their sum, so that"
    " they need not add up to one; values that are missing are left out of the mean."
)


def words(name: str, count: int) -> str:
    """Text of which no two names share a shingle, English enough to be kept."""
    return " ".join(f"the {name}{place} of" for place in range(count))


def document(name: str, body: str, split: Split, library: str = "lib") -> Document:
    return Document(name, f"{name}(x)\n\n{body}", name.rpartition(".")[0], library, split)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def docstring(text: str, *, name: str = "lib.mean", signature: str = "(x)") -> str:
    return pydocs.document_text(pydocs.Docstring(name, signature, text))


class TestReading:
    def test_a_module_that_raises_when_imported_is_read(self, tmp_path):
        write(tmp_path / "lib" / "bad.py", f'"""{PROSE}"""\nraise RuntimeError("imported")\n')
        found = list(pydocs.read_package(tmp_path / "lib", "lib", library="lib"))
        assert [(d.id, d.text) for d in found] == [("lib.bad", f"lib.bad\n\n{PROSE}")]
        assert "lib.bad" not in sys.modules

    def test_modules_classes_functions_and_methods(self, tmp_path):
        source = (
            '"""Module."""\n'
            'class A:\n    """Class."""\n'
            "    def __init__(self, size: int = 3, *rest, key: str, **more): pass\n"
            '    def run(self, /, x): """Method."""\n'
            '    @classmethod\n    def make(cls): """Maker."""\n'
            "try:\n"
            '    async def f(x: "Tensor", *, dim=None) -> None: """Function."""\n'
            "except ImportError: pass\n"
            'def outer():\n    def inner(): """Hidden."""\n'
        )
        found = read_docstrings(write(tmp_path / "m.py", source), "m")
        assert [(d.name, d.signature, d.text) for d in found] == [
            ("m", "", "Module."),
            ("m.A", "(size=3, *rest, key, **more)", "Class."),
            ("m.A.run", "(x)", "Method."),
            ("m.A.make", "()", "Maker."),
            ("m.f", "(x, *, dim=None)", "Function."),
        ]

    def test_attached_documentation(self, tmp_path):
        source = (
            "add_newdoc('numpy._core', 'nditer', '''An iterator.''')\n"
            "add_newdoc('numpy._core', 'nditer', ('copy', '''Copies it.'''))\n"
            "add_newdoc('numpy', 'flat', [('base', '''A base.'''), ('index', '''An index.''')])\n"
            'add_docstr(torch.abs, r"""abs(x) of {{a}} """.format(**common) + "more")\n'
            'add_newdoc("gamma", """The gamma function.""")\n'
            'print("""not documentation""", """at all""")\n'
        )
        found = read_docstrings(write(tmp_path / "docs.py", source), "scipy.special.docs")
        assert [(d.name, d.text) for d in found] == [
            ("numpy._core.nditer", "An iterator."),
            ("numpy._core.nditer.copy", "Copies it."),
            ("numpy.flat.base", "A base."),
            ("numpy.flat.index", "An index."),
            ("torch.abs", "abs(x) of {a} more"),
            ("scipy.special.gamma", "The gamma function."),
        ]

    def test_tests_and_vendored_copies_are_skipped(self, tmp_path):
        names = ["__init__.py", "a/b.py", "a/b.pyi", "tests/c.py", "a/test_d.py", "_vendor/e.py"]
        for name in names:
            write(tmp_path / name, "")
        found = [(module, path.suffix) for module, path in find_modules(tmp_path, "lib")]
        assert found == [("lib", ".py"), ("lib.a.b", ".py"), ("lib.a.b", ".pyi")]

    def test_unreadable_sources_and_their_warnings_are_passed_over(self, tmp_path):
        assert read_docstrings(write(tmp_path / "a.py", '"""a"""\nprint 1\n'), "a") == []
        assert (
            read_docstrings(write(tmp_path / "b.py", '"""a \\d b"""\n'), "b")[0].text == "a \\d b"
        )

    def test_long_signatures_are_cut(self, tmp_path):
        arguments = ", ".join(f"argument_{place}=None" for place in range(40))
        path = write(tmp_path / "m.py", f'def f({arguments}): """Text."""\n')
        signature = read_docstrings(path, "m")[0].signature
        assert len(signature) <= MAX_SIGNATURE_CHARACTERS + 7
        assert signature.endswith("=None, ...)")

    def test_packages_are_located_without_import(self, tmp_path, monkeypatch):
        write(tmp_path / "unimported_lib" / "__init__.py", "raise RuntimeError\n")
        monkeypatch.syspath_prepend(tmp_path)
        assert pydocs.locate_package("unimported_lib") == tmp_path / "unimported_lib"
        assert pydocs.locate_package("surely_not_installed") is None


class TestCleaning:
    def test_name_and_signature_stand_above_the_dedented_text(self):
        text = docstring(f"{PROSE}\n\n\n\n    Notes   \n      deeper\n    ")
        assert text == f"lib.mean(x)\n\n{PROSE}\n\nNotes\n  deeper"

    def test_a_signature_in_the_docstring_is_used_once(self):
        text = docstring(f"mean(x, axis=None) -> float\n\n{PROSE}", signature="")
        assert text == f"lib.mean(x, axis=None)\n\n{PROSE}"
        assert docstring(f"other(x)\n\n{PROSE}").startswith("lib.mean(x)\n\nother(x)")

    def test_unfilled_template_lines_are_dropped(self):
        assert docstring(f"{PROSE}\n%(params)s\n{{more}}\nEnd.") == f"lib.mean(x)\n\n{PROSE}\nEnd."

    @pytest.mark.parametrize(
        "text",
        [
            "Too short.",
            "Mean.\n\n" + ">>> total = mean(of=the_values, to=the_end)\nthe mean is in\n" * 9,
            "Permission is hereby granted, free of charge, to any person. " + PROSE,
            "Berechnet den gewichteten Mittelwert der Werte, wobei Gewichte durch ihre Summe"
            " geteilt werden, sodass sie nicht eins ergeben müssen; fehlende Werte entfallen.",
            "1.0 2.0 3.0 4.0 the of to\n" * 20,
            PROSE * 300,
        ],
        ids=["tiny", "doctest", "licence", "german", "table", "huge"],
    )
    def test_what_is_no_english_prose_is_dropped(self, text):
        assert docstring(text) == ""


class TestSplits:
    def test_a_file_goes_to_one_split_by_its_module_name(self, tmp_path):
        for place in range(40):
            body = f'"""{PROSE}"""\ndef f(): """{PROSE}"""\n'
            write(tmp_path / f"m{place}.py", body)
        found = list(pydocs.read_package(tmp_path, "lib", library="lib"))
        splits: dict[str, set[str]] = {}
        for item in found:
            splits.setdefault(item.module, set()).add(item.split)
        assert len(splits) == 40
        assert all(len(each) == 1 for each in splits.values())
        assert {item.split for item in found} == {"train", "validation", "test"}

    def test_shares(self):
        splits = [pydocs.split_of(f"package.module{place}") for place in range(20_000)]
        assert splits.count("test") / 20_000 == pytest.approx(pydocs.TEST_SHARE, abs=0.01)
        share = splits.count("validation") / 20_000
        assert share == pytest.approx(pydocs.VALIDATION_SHARE, abs=0.01)

    def test_duplicates_keep_the_first_id(self):
        kept = pydocs.drop_duplicates(
            [
                document("b.copy", "Same  text\nhere.", "train"),
                document("a.f", "Same text here.", "train"),
                document("c.f", "Another text.", "train"),
                document("c.f", "Defined twice.", "train"),
            ]
        )
        assert [item.id for item in kept] == ["a.f", "c.f"]
        assert kept[1].text.endswith("Another text.")

    def test_near_duplicates_do_not_cross_splits(self):
        shared = words("shared", 20)
        kept = pydocs.separate_splits(
            [
                document("a.quotes_test", f"{shared} {words('own', 8)}", "train"),
                document("b.mostly_own", f"{shared} {words('mine', 80)}", "train"),
                document("c.quotes_test", f"{words('tail', 12)} {words('third', 8)}", "validation"),
                document("d.original", f"{shared} {words('tail', 24)}", "test"),
                document("e.inside", words("mine", 20), "test"),
            ]
        )
        # `a` and `c` are half `d`; `e` stands inside `b`, which is long and keeps its own.
        assert [item.id for item in kept] == ["b.mostly_own", "d.original"]

    def test_near_duplicates_within_a_split_stay(self):
        shared = words("shared", 20)
        both = [document("a.f", shared, "train"), document("b.f", f"{shared} more", "train")]
        assert pydocs.separate_splits(both) == both


class TestShingles:
    def test_layout_case_and_punctuation_do_not_matter(self):
        index = ShingleIndex([Shingler()("random_state : int,\n    RandomState instance or None")])
        assert (
            index.containment(Shingler()("Random state (int, RandomState instance, or NONE)")) == 1
        )

    def test_containment_counts_shared_runs(self):
        shingler = Shingler()
        index = ShingleIndex([shingler("a b c d e f g h i")])
        assert index.containment(shingler("a b c d e f g h x")) == 0.5
        assert index.containment(shingler("b a c d e f g h i")) == 0.0
        assert index.containment(shingler("")) == 0.0
        assert not ShingleIndex([]).holds(shingler("a b c"))


class TestLoading:
    @pytest.fixture
    def installed(self, tmp_path: Path, monkeypatch) -> None:
        """A standard library and one dependency in miniature."""
        for place in range(30):
            body = words(f"std{place}x", 30)
            write(tmp_path / "std" / f"m{place}.py", f'"""{body}"""\n')
            body = words(f"dep{place}x", 30)
            write(tmp_path / "dep" / f"n{place}.py", f'def f(x, y=1):\n    """{body}"""\n')
        topic = words("topic", 30)
        write(tmp_path / "std" / "pydoc_data" / "topics.py", f"topics = {{'with': {topic!r}}}\n")
        monkeypatch.setattr(pydocs.sysconfig, "get_path", lambda _: str(tmp_path / "std"))
        monkeypatch.setattr(pydocs, "LIBRARIES", {"dep": ("dep",), "absent": ("not_there",)})
        monkeypatch.syspath_prepend(tmp_path)

    @pytest.mark.usefixtures("installed")
    def test_all_documents_are_read_in_order(self):
        documents = pydocs.load_documents()
        assert len(documents) == 61
        assert [d.id for d in documents] == sorted(d.id for d in documents)
        by_id = {d.id: d for d in documents}
        assert by_id["dep.n3.f"].text.startswith("dep.n3.f(x, y=1)\n\nthe dep3x0 of")
        assert (by_id["dep.n3.f"].library, by_id["dep.n3.f"].module) == ("dep", "dep.n3")
        assert by_id["m3"].library == "python"
        assert "pydoc_data.topics.with" in by_id
