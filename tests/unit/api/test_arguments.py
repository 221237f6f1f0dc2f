"""Wrong arguments are refused before any work, numbers in Python as on the command line."""

from __future__ import annotations

import inspect
import math
import pydoc
from dataclasses import KW_ONLY
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules

import pytest

import biphasic
import biphasic.api
from biphasic.api.verb import Function, Verb, fields_of, option
from biphasic.errors import ConfigError, DataError
from small_root import write_texts


def _verbs():
    for module in iter_modules(biphasic.api.__path__, "biphasic.api."):
        named = vars(import_module(module.name)).values()
        yield from (one.verb for one in named if isinstance(one, Function))


@pytest.mark.parametrize(
    ("name", "args", "given", "said"),
    [
        ("corpus.build", ((),), {"out": "c", "workers": -1}, "workers: -1; give 1 or more"),
        ("corpus.inspect", ("c",), {"max_seqlen": 0}, "max_seqlen: 0; give 8 or more"),
        ("tokenizer.train", (("t.txt",), "t"), {"vocab_size": 100}, "100; give 300 to 131072"),
        ("pairs.build", ((),), {"out": "p", "per_document": 0}, "per_document: 0"),
        ("pairs.mine", ("p", "m", "o"), {"margin": 1.5}, "margin: 1.5; give 0 to 1"),
        ("pairs.teach", ("p", "m", "o"), {"width": -1}, "width: -1"),
        ("plan", ("s.yaml",), {"rate": math.inf}, "rate: inf"),
        ("plan", ("s.yaml",), {"rate": math.nan}, "rate: nan"),
        ("run_study", ("s.yaml",), {"tries": 0}, "tries: 0"),
        ("pretrain", ("r.yaml",), {"skip_steps": (4, -2)}, "skip_steps: -2; give 0 or more"),
        ("pretrain", ("r.yaml",), {"max_seconds": math.nan}, "max_seconds: nan; give 0 or more"),
        ("merge_models", ("a", "b", "out"), {"weight": 2.0}, "weight: 2; give 0 to 1"),
        ("estimate", ("r.yaml",), {"vocab_size": 0}, "vocab_size: 0"),
        ("adapt", ("m", "out"), {"corpus": "c", "max_seqlen": 0}, "max_seqlen: 0; give 1 or more"),
        ("encode", ("m", ["a"]), {"max_seqlen": 7}, "max_seqlen: 7"),
        ("encode", ("m", ["a"]), {"max_seqlen": 10**400}, "max_seqlen: a number with too many"),
        ("adapt", ("m", "o"), {"corpus": "c", "rows_per_step": 10**40}, "rows_per_step: a number"),
        ("estimate", ("r.yaml",), {"devices": "2"}, "devices: '2'; give a whole number"),
        ("pretrain", ("r.yaml",), {"checkpoint_every": 2.5}, "checkpoint_every: 2.5; give a whole"),
        ("pretrain", ("r.yaml",), {"threads": True}, "threads: True; give a whole number"),
        ("pretrain", ("r.yaml",), {"skip_steps": [4, 1.5]}, "skip_steps: 1.5; give a whole number"),
        ("pretrain", ("r.yaml",), {"max_seconds": "00:10:00"}, "'00:10:00'; give a number"),
        ("pretrain", ("r.yaml",), {"quiet": "no"}, "quiet: 'no'; give True or False"),
        ("adapt", (3, "out"), {"corpus": "c"}, "model: 3; give a path"),
        ("evaluate", ("m", "mnli"), {"seeds": {0, 1}}, "seeds: give a list, not a set"),
    ],
)
def test_a_number_outside_is_refused_by_name(tmp_path, monkeypatch, name, args, given, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        attrgetter(name)(biphasic)(*args, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"corpus": "no-such.txt"}, "no-such.txt: no such file or folder"),
        ({"learning_rate": -1.0}, "learning_rate.peak"),
        ({"mlm_probability": 2.0}, "mlm_probability"),
        ({"optimizer": "sgd"}, "sgd"),
        ({"steps": 10, "warmup_steps": 50}, "warmup_steps"),
        ({"corpus": {"sources": ["text.txt"], "vocab_size": 400}}, "'vocab_size' is for a new"),
    ],
)
def test_settings_of_adapt_are_checked_before_its_model_is_fetched(tmp_path, given, said):
    (tmp_path / "text.txt").write_text("some text")
    settings = {"corpus": tmp_path / "text.txt", "root": tmp_path / "runs", **given}
    with pytest.raises((ConfigError, DataError), match=said):
        biphasic.adapt(tmp_path / "no-such-model", tmp_path / "out", quiet=True, **settings)


def test_help_shows_functions_with_their_options():
    text = pydoc.render_doc(biphasic.encode, renderer=pydoc.plaintext)
    assert "encode(model: 'Path | str', source: 'Source'" in text
    assert "A file (.jsonl, .csv, .tsv, .parquet or .txt)" in text
    with pytest.raises(TypeError, match=r"^pretrain: missing a required argument: 'recipe'"):
        getattr(biphasic, "pretrain")()  # noqa: B009 - not by its types


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("adapt", "corpus"),
        ("compare", "folder"),
        ("corpus.build", "out"),
        ("corpus.merge", "folders"),
        ("diff", "second"),
        ("encode", "source"),
        ("load", "model"),
        ("pairs.mine", "miner"),
        ("predict", "folder"),
        ("pretrain", "recipe"),
        ("site.check", "file"),
        ("tokenizer.check", "tokenizer"),
    ],
)
def test_none_for_what_is_needed_is_refused_by_name(name, missing):
    function = attrgetter(name)(biphasic)
    arguments = inspect.signature(function).parameters.values()
    given = {one.name: "x" for one in arguments if one.default is one.empty}
    with pytest.raises(ConfigError, match=f"^{missing}: is None"):
        function(**given | {missing: None})


@pytest.mark.parametrize("verb", sorted({*_verbs()}, key=repr), ids=repr)
def test_every_option_of_a_plain_type_refuses_other_types(verb):
    fields = fields_of(verb)
    given = {name: "x" for name, field in fields.items() if field.spelling.default is ...}
    lists = {name: ["x"] for name in given if fields[name].is_list}
    for name, field in fields.items():
        if field.parts <= {"Path", "bool", "float", "int", "str"}:
            wrong = [{}] if field.is_list else {}
            with pytest.raises(ConfigError, match=rf"^{name.rstrip('_')}: {{}}; give "):
                verb(**given | lists | {name: wrong})


@pytest.mark.parametrize(
    ("name", "args", "given", "several"),
    [
        ("corpus.build", ("t.jsonl",), {"out": "c"}, "sources"),
        ("corpus.merge", ("c", "out"), {}, "folders"),
        ("tokenizer.train", (Path("t.txt"), "t"), {}, "sources"),
        ("pairs.build", (), {"out": "p", "against": "mnli"}, "against"),
        ("plan", ("s.yaml",), {"overrides": "name=x"}, "overrides"),
        ("evaluate_all", ("m", "mnli"), {}, "tasks"),
        ("evaluate", ("m", "mnli"), {"learning_rates": 1e-3}, "learning_rates"),
    ],
)
def test_a_value_in_place_of_a_list_is_refused(name, args, given, several):
    with pytest.raises(ConfigError, match=rf"^{several}: give a list, as \['?\S+\]$"):
        attrgetter(name)(biphasic)(*args, **given)


@pytest.mark.parametrize(
    ("name", "args", "given", "said"),
    [
        ("adapt", ("m", "out"), {"corpus": "c", "objective": "clm"}, "objective.*'clm'.*mntp"),
        ("analyze", ("runs/a",), {"convention": "95"}, "convention.*'95'.*standard or paper"),
        ("encode", ("m", ["a"]), {"precision": "fp16"}, "precision.*'fp16'.*fp32 or bf16"),
        ("tune", ("s.yaml",), {"by": "model"}, "by.*'model'.*objective"),
    ],
)
def test_an_unknown_choice_is_refused_with_those_that_are_known(name, args, given, said):
    with pytest.raises(ConfigError, match=said):
        attrgetter(name)(biphasic)(*args, **given)


class Kept(Verb):
    """Keep a share.

    Example:
        >>> Kept(0.5)()
    """

    share: float = option(least=0, most=1)
    """Share of all."""
    _: KW_ONLY
    workers: int | None = option(default=None, least=1)
    """Processes. Default: one per core."""

    def __call__(self) -> tuple[float, int | None]:
        return self.share, self.workers


def test_the_ends_of_a_range_and_what_is_not_given_pass():
    kept = Function(Kept)
    assert [kept(0), kept(1, workers=1), kept(share=0.5, workers=None)] == [
        (0, None), (1, 1), (0.5, None)
    ]  # fmt: skip
    with pytest.raises(TypeError, match="missing a required argument: 'share'"):
        kept()
    with pytest.raises(TypeError, match="too many positional arguments"):
        kept(0, 1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'worker'"):
        kept(0, worker=1)


def test_paths_are_read_where_texts_are_and_home_folders_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    source = write_texts(tmp_path)
    made = biphasic.corpus.build([source], out="~/made", vocab_size=300, quiet=True)
    assert made.folder == tmp_path / "made"
    study = "{name: s, title: S, corpus: {folder: made}, recipe: {learning_rate: {peak: 1.0e-3}}, "
    (tmp_path / "s.yaml").write_text(study + "arms: [{name: a}], tasks: []}\n")
    assert biphasic.plan("~/s.yaml", root="~/runs").table()


def test_options_do_not_change():
    with pytest.raises(AttributeError, match="share"):
        Kept(0.5).share = 1


def test_a_function_has_the_signature_and_the_texts_of_its_options():
    kept = Function(Kept)
    assert str(inspect.signature(kept)) == (
        "(share: 'float', *, workers: 'int | None' = None) -> 'tuple[float, int | None]'"
    )
    assert kept.__doc__ == (
        "Keep a share.\n\nArgs:\n    share: Share of all.\n"
        "    workers: Processes. Default: one per core.\n\nExample:\n    >>> Kept(0.5)()"
    )
