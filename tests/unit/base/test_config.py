"""Settings: what is read, and the one line that a mistake gets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from biphasic import config
from biphasic.config import Config, load_config, nearest, parse_config, refuse_repeats
from biphasic.errors import ConfigError
from biphasic.plugins import load_with_plugins


class Circle(Config):
    sort: Literal["circle"]
    radius: PositiveFloat


class Square(Config):
    sort: Literal["square"]
    side: PositiveFloat


class Grid(Config):
    rows: PositiveInt = 1
    columns: PositiveInt = 1


class Frame(Config):
    width: PositiveInt = 1
    grid: Grid = Grid()

    @model_validator(mode="after")
    def _thin(self) -> Frame:
        if self.width > 9:
            raise ValueError("width is above 9")
        return self


class Drawing(Config):
    title: str
    layout: Literal["wide", "tall"] | Grid = "wide"
    grid: Grid = Grid()
    frame: Frame | Literal["none"] = "none"
    shapes: tuple[Annotated[Circle | Square, Field(discriminator="sort")], ...] = ()
    marks: Annotated[tuple[int, ...], Field(min_length=1)] = (1,)
    copies: PositiveInt | tuple[NonNegativeInt, ...] = 1
    precision: Literal["bf16", "fp32"] = "bf16"

    @model_validator(mode="after")
    def _no_empty_title(self) -> Drawing:
        if not self.title:
            raise ValueError("title is empty; give one")
        return self


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "drawing.yaml"


def refusal(raw: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(Drawing, {"title": "x", **raw}, where="here")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("here: ")
    return message.removeprefix("here: ")


def refused(path: Path, *overrides: str, kind: type[Config] = Drawing) -> str:
    with pytest.raises(ConfigError) as caught:
        load_with_plugins(kind, path, overrides)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_reads_yaml(path):
    path.write_text("title: y\nshapes:\n- {sort: circle, radius: 2}\nlayout: {rows: 3}\n")
    drawing = load_config(Drawing, path)
    assert drawing == Drawing(
        title="y", shapes=(Circle(sort="circle", radius=2.0),), layout=Grid(rows=3)
    )


def test_records_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Grid().rows = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"precison": "bf16"}, "unknown key 'precison' (did you mean 'precision'?)"),
        ({"grid": {"row": 1}}, "unknown key 'grid.row' (did you mean 'rows'?)"),
        ({"frame": {"widht": 1}}, "unknown key 'frame.widht' (did you mean 'width'?)"),
        ({"grid": {"zzzzz": 1}}, "unknown key 'grid.zzzzz' (known: columns, rows)"),
        (
            {"shapes": [{"sort": "circle", "radius": 1, "raduis": 1}]},
            "unknown key 'shapes.0.raduis' (did you mean 'radius'?)",
        ),
        (  # Only the fields of the branch that was chosen are suggested.
            {"shapes": [{"sort": "circle", "radius": 1, "side": 1}]},
            "unknown key 'shapes.0.side' (known: radius, sort)",
        ),
        (
            {"shapes": [{"sort": "circel", "radius": 1}]},
            "shapes.0.sort: unknown value 'circel' (did you mean 'circle'?)",
        ),
        ({"shapes": [{"radius": 1}]}, "'shapes.0.sort' is required"),
        (
            {"shapes": [{"sort": "square", "side": 1}, {"sort": "circle"}]},
            "'shapes.1.radius' is required",
        ),
        (
            {"shapes": [{"sort": "circle", "radius": 0}]},
            "shapes.0.radius: input should be greater than 0 (got 0)",
        ),
        (
            {"shapes": [{"sort": "circle", "radius": float("inf")}]},
            "shapes.0.radius: input should be a finite number (got inf)",
        ),
        ({"shapes": ["circle"]}, "shapes.0: expected a mapping of settings (got 'circle')"),
        ({"grid": 3}, "grid: expected a mapping of settings (got 3)"),
        ({"precision": "fp16"}, "precision: unknown value 'fp16' (did you mean 'bf16'?)"),
        ({"layout": "wied"}, "layout: unknown value 'wied' (did you mean 'wide'?)"),
        ({"layout": {"colums": 1}}, "unknown key 'layout.colums' (did you mean 'columns'?)"),
        ({"layout": {"rows": -1}}, "layout.rows: input should be greater than 0 (got -1)"),
        ({"layout": {"rows": "x"}}, "layout.rows: input should be a valid integer (got 'x')"),
        ({"marks": []}, "marks: give at least 1 (got [])"),
        ({"marks": 1}, "marks: expected a list (got 1)"),
        ({"copies": 0}, "copies: input should be greater than 0 (got 0)"),
        ({"copies": [-1]}, "copies.0: input should be greater than or equal to 0 (got -1)"),
        ({"copies": {"a": 1}}, "copies: input should be a valid integer (got {'a': 1})"),
        ({"layout": 5}, "layout: expected a mapping of settings (got 5)"),
        ({"title": ""}, "title is empty; give one"),
    ],
)
def test_names_the_mistake(raw, message):
    assert refusal(raw) == message


def test_names_every_mistake_and_unknown_keys_first():
    message = refusal({"shapes": [{"sort": "circle", "radus": 1}], "precision": "fp8"})
    assert message.split("; ") == [
        "unknown key 'shapes.0.radus' (did you mean 'radius'?)",
        "precision: unknown value 'fp8' (known: bf16, fp32)",
    ]


ALIAS = {"row": 1}


@pytest.mark.parametrize(
    ("raw", "messages"),
    [
        ({"zzz": 1, "precision": "fp8"},
         ["unknown key 'zzz' (known: *)", "precision: unknown value 'fp8' (known: bf16, fp32)"]),
        ({"grid": {"row": 1, "columns": 0}},
         ["unknown key 'grid.row' (did you mean 'rows'?)",
          "grid.columns: input should be greater than 0 (got 0)"]),
        ({"zzz": 1, "grid": {"row": 1, "columns": 0}},  # each hides what is below
         ["unknown key 'zzz' (known: *)", "unknown key 'grid.row' (did you mean 'rows'?)",
          "grid.columns: input should be greater than 0 (got 0)"]),
        ({"zzz": 1, "marks": []},
         ["unknown key 'zzz' (known: *)", "marks: give at least 1 (got [])"]),
        ({"shapes": [{"sort": "circle", "radus": 1}]},  # the misspelt key is not missing, too
         ["unknown key 'shapes.0.radus' (did you mean 'radius'?)"]),
        ({"shapes": [{"sort": "circle", "zzz": 1}]},
         ["unknown key 'shapes.0.zzz' (known: radius, sort)", "'shapes.0.radius' is required"]),
        ({"shapes": [{"sort": "square", "side": 0, "zzz": 1}, {"sort": "oval"}], "yyy": 1},
         ["unknown key 'yyy' (known: *)", "unknown key 'shapes.0.zzz' (known: side, sort)",
          "shapes.0.side: input should be greater than 0 (got 0)",
          "shapes.1.sort: unknown value 'oval' (known: circle, square)"]),
        ({"layout": {"colums": 1, "rows": -1}},
         ["unknown key 'layout.colums' (did you mean 'columns'?)",
          "layout.rows: input should be greater than 0 (got -1)"]),
        ({"frame": {"widht": 1, "width": 10}},  # whether they fit together is asked without it
         ["unknown key 'frame.widht' (did you mean 'width'?)"]),
        ({"titel": "y", "title": ""}, ["unknown key 'titel' (did you mean 'title'?)"]),
        # What does not fit together may follow from the unknown key of a part.
        ({"grid": {"row": 1}, "title": ""}, ["unknown key 'grid.row' (did you mean 'rows'?)"]),
        # One mapping in two places, as of an alias in YAML.
        ({"grid": ALIAS, "frame": {"zzz": 1, "grid": ALIAS}},
         ["unknown key 'grid.row' (did you mean 'rows'?)",
          "unknown key 'frame.zzz' (known: grid, width)",
          "unknown key 'frame.grid.row' (did you mean 'rows'?)"]),
    ],
)  # fmt: skip
def test_an_unknown_key_hides_no_other_mistake(raw, messages):
    known = ", ".join(sorted(Drawing.model_fields))
    assert refusal(raw).split("; ") == [text.replace("*", known) for text in messages]


@pytest.mark.parametrize(
    ("name", "known", "suggestion"),
    [
        ("clmm", ("mlm", "clm"), " (did you mean 'clm'?)"),
        ("xyz", ("b", "a"), " (known: a, b)"),
        ("xyz", (), ""),
        ("x" * 1000, ("a",), " (known: a)"),
        # Transposed letters are the most likely mistake.
        ("cml", ("clm", "mlm", "mntp"), " (did you mean 'clm'?)"),
        ("mml", ("clm", "mlm"), " (did you mean 'mlm'?)"),
        ("naon", ("nano", "pico"), " (did you mean 'nano'?)"),
    ],
)
def test_nearest(name, known, suggestion):
    assert nearest(name, known) == suggestion


class Study(Config):
    recipe: dict[str, str]
    arms: list[str]


class Run(Config):
    model: str
    phases: tuple[str, ...] = ()
    learning_rate: float = 0.0


class Text(Config):
    sources: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            Run,
            "{arms: [a], recipe: {model: x}, name: y}",
            "a study; 'biphasic study plan",
        ),
        (Run, "{include: base.yaml}", "a study; 'biphasic study plan"),
        (Study, "{model: x, phases: []}", "a recipe; train it with 'biphasic pretrain"),
        (Study, "{model: x, learning_rate: {peak: 1}}", "a recipe; train it with 'biphasic pretr"),
        (Run, "{sources: [a]}", "a corpus; build it with 'biphasic corpus build --spec"),
        (Text, "{arms: [a]}", "a study; 'biphasic study plan"),
        (Study, "{kind: sc, train: x.csv}", "a task; name it with --task of 'biphasic evaluate'"),
    ],
)
def test_a_file_of_another_kind_is_named(path, kind, text, message):
    path.write_text(text)
    assert refused(path, kind=kind).startswith(f"{path}: this is {message}")


def test_a_file_of_the_right_kind_with_a_wrong_key_is_not_taken_for_another(path):
    path.write_text("{model: x, arms: [a]}")
    assert "unknown key 'arms'" in refused(path, kind=Run)


def test_overrides_reach_groups_lists_and_new_keys(path):
    path.write_text("title: y\ngrid:\nshapes:\n- {sort: circle, radius: 2}\n")
    overrides = ["title=z", "grid.rows=4", "shapes.0.radius=1e-3", "layout.columns=2"]
    assert load_with_plugins(Drawing, path, overrides) == Drawing(
        title="z",
        grid=Grid(rows=4),
        shapes=(Circle(sort="circle", radius=0.001),),
        layout=Grid(columns=2),
    )


def test_override_takes_yaml_values(path):
    path.write_text("title: y\n")
    drawing = load_with_plugins(Drawing, path, ["shapes=[{sort: square, side: 2}]", "title=a=b"])
    assert drawing.shapes == (Square(sort="square", side=2.0),)
    assert drawing.title == "a=b"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("title", "--set title: expected KEY=VALUE, e.g. title=1"),
        ("=3", "--set =3: expected KEY=VALUE, e.g. seed=1"),
        (
            f"title={10**39}",
            f"--set title={10**39}: the value is not valid YAML: a number with too many digits; "
            "write text in quotes",
        ),
        ("title.a=1", "--set title.a=1: 'title' is a value, not a group of settings"),
        ("numbers.0.a=1", "--set numbers.0.a=1: '0' is a value, not a group of settings"),
        ("shapes.1.side=1", "--set shapes.1.side=1: '1' is not one of 0..0"),
        ("shapes.x=1", "--set shapes.x=1: 'x' is not one of 0..0"),
        ("empty.0=1", "--set empty.0=1: '0' is not there: the list is empty"),
    ],
)
def test_bad_overrides(path, override, message):
    path.write_text("title: y\nshapes: [{sort: square, side: 2}]\nnumbers: [1]\nempty: []\n")
    assert refused(path, override) == message


def test_an_override_that_is_not_yaml(path):
    path.write_text("title: y\n")
    start = "--set title=[: the value is not valid YAML: while parsing a flow node"
    assert refused(path, "title=[").startswith(start)


def test_unknown_override_is_named(path):
    path.write_text("title: y\n")
    assert "unknown key 'grid.rowz' (did you mean 'rows'?)" in refused(path, "grid.rowz=1")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"name: a\n  title: b", "not valid YAML: line 2: "),
        (b"- a\n- b\n", "expected a mapping of settings at the top level"),
        (b"", "is empty; expected a mapping of settings"),
        (b"title: \xff\xfe", "cannot be read"),
    ],
)
def test_bad_files(path, content, problem):
    path.write_bytes(content)
    assert refused(path).startswith(f"{path}: {problem}")


def test_missing_file_and_folder(path):
    assert "no such file" in refused(path)
    assert "cannot be read" in refused(path.parent)


NESTED = "[" * 3000 + "]" * 3000
BOMB = "a: &a [1, 2, 3]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]\n"
    for last, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("title: !!timestamp 2024-02-30", "not a valid timestamp (day is out of range for month)"),
        ("title: y\ngrid: {rows: 1:30}", "grid.rows: input should be a valid integer"),
        ("title: y\ngrid: {rows: yes}", "grid.rows: input should be a valid integer"),
        ("title: !!int x", "not a valid int"),
        ("title: !!int ''", "not a valid int"),
        ("title: !!bool x", "not a valid bool"),
        ("title: !!timestamp x", "not a valid timestamp"),
        (f"title: {'9' * 5000}", "not a valid int"),
        (f"seed: {'9' * 40}", "a number with too many digits"),
        (f"title: {NESTED}", "nest"),  # newer versions of libyaml have words of their own
        ("title: " + 100_000 * "{a: ", "nested too deeply"),
        ("title: &a [*a]", "an alias contains itself"),
        (f"{BOMB}title: *h", "aliases expand it to more than 1,000,000 values"),
        ("title: &a {a: 1}\ngrid: {<<: [*a, *a]}", "unknown key 'grid.a'"),
        ("? [a, b]\n: c", "not valid YAML"),
        ("1: x\ntitle: y", "1"),
    ],
    ids=lambda value: value[:20],
)
def test_whatever_yaml_can_spell_is_refused_in_one_line(path, text, problem):
    path.write_text(text)
    message = refused(path)
    assert message.startswith(f"{path}: ")
    assert problem in message
    assert len(message) < 500


def test_a_large_file_is_no_file_of_settings(path, monkeypatch):
    monkeypatch.setattr(config, "MOST_BYTES", 1 << 10)
    path.write_text("title: y\n# " + "x" * 1000)
    load_config(Drawing, path)
    path.write_text("title: y\n# " + "x" * 1014)
    assert "larger than 1 KiB, the maximum for a file of settings" in refused(path)


@pytest.mark.parametrize(
    "override", ["shapes.².side=1", "shapes.٣.side=1", f"shapes.{'9' * 5000}.side=1"]
)
def test_only_plain_numbers_are_positions(path, override):
    path.write_text("title: y\nshapes: [{sort: square, side: 2}]\n")
    assert "is not one of" in refused(path, override)


@pytest.mark.parametrize("text", ["no", "on", "1:30", "24:00:00", "2024-02-30", "0x10", "1e3", "="])
def test_plain_text_is_text(path, text):
    path.write_text(f"title: {text}")
    assert load_config(Drawing, path).title == text
    assert load_with_plugins(Drawing, path, [f"title={text}"]).title == text


@pytest.mark.parametrize(
    ("text", "number"), [("010", 10), (".5", 0.5), ("1.5e-05", 1.5e-05), ("1e-3", 0.001)]
)
def test_numbers_are_decimal(path, text, number):
    path.write_text(f"title: y\nshapes: [{{sort: square, side: {text}}}]")
    assert load_config(Drawing, path).shapes == (Square(sort="square", side=number),)


@pytest.mark.parametrize("text", ["10_000", "+10_000", "010000"])
def test_whole_numbers_may_have_groups_of_digits(path, text):
    path.write_text(f"seed: {text}")
    assert config.load_settings(path) == {"seed": 10_000}


@pytest.mark.parametrize("value", ["!!int x", NESTED, "&a [*a]", "9" * 5000])
def test_a_wrong_value_of_an_override_is_one_line(path, value):
    path.write_text("title: y\n")
    message = refused(path, f"title={value}")
    assert message.startswith("--set title=")
    assert len(message) <= 2010


def test_a_wrong_value_is_shown_in_part_however_large_it_is():
    deep = "x"
    for _ in range(40):
        deep = [deep] * 9  # written out, more than all memory holds
    with pytest.raises(ConfigError) as caught:
        parse_config(Drawing, {"title": deep}, where="test")
    assert str(caught.value).startswith("test: title: input should be a valid string (got [[[[")
    assert len(str(caught.value)) < 200


def test_repeats_are_refused_in_long_lists():
    values = [*range(20_000)]
    refuse_repeats("seeds", values)
    with pytest.raises(ValueError, match="seeds: 7 given more than once"):
        refuse_repeats("seeds", [*values, 7])


def test_long_lists_have_no_nearest():
    assert "did you mean" not in nearest("n", [f"n{number}" for number in range(20_000)])
