"""Phases on text of their own: settings of the run's corpus that differ, built with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from biphasic import adapt, pretrain
from biphasic.config import parse_config
from biphasic.data.building.build import build_corpus
from biphasic.data.building.config import CorpusConfig, phase_corpus
from biphasic.data.corpus import Corpus
from biphasic.data.rows import BatchShape, RowPlan
from biphasic.errors import ConfigError, DataError, StoppedError
from biphasic.execution.job import job_path
from biphasic.files import file_sha256
from biphasic.study.plan.finished import outdated_arms
from biphasic.study.resolve import resolve
from biphasic.study.run.jobs import load_job
from biphasic.study.settings.load import load_study, read_recipe, study_text
from biphasic.study.settings.study import StudyConfig, anchor_corpus
from biphasic.study.study import Study
from refusals import refusals, refused
from small_root import prepare, study_of, write_texts
from tiny_study import clm, mlm

pytestmark = pytest.mark.usefixtures("one_thread", "unprobed")
README = Path(__file__).parents[3] / "README.md"
SEEN = " ".join(f"word{n}" for n in range(30))


@pytest.fixture
def texts(tmp_path) -> Path:
    """The text of the run; beside it is `better.jsonl`."""
    lines = [json.dumps({"text": f"{'a window of tokens ' * 6}{n}"}) for n in range(150)]
    (tmp_path / "better.jsonl").write_text("\n".join([*lines, json.dumps({"text": SEEN})]))
    return write_texts(tmp_path)


def study(texts: Path, *phases, **changes):
    first = clm(4)
    arms = [
        {"name": "trunk", "phases": [first]},
        {"name": "same", "phases": [first, mlm(4)]},
        {"name": "better", "phases": [first, mlm(4, corpus=of(texts))]},
    ]
    return study_of(texts, texts.parent / "first", **{"arms": arms, "tasks": [], **changes})


def of(texts: Path, **changes) -> dict:
    return {"sources": [str(texts.with_name("better.jsonl"))], **changes}


def recipe(texts: Path, **changes) -> dict:
    return {
        "model": "pico", "max_seqlen": 32, "rows_per_step": 4, "learning_rate": {"peak": 1e-3},
        "phases": [clm(3), mlm(3, corpus=of(texts, **changes))],
    }  # fmt: skip


def read(state: Path) -> dict:
    return json.loads((state / "state.json").read_text())


def test_arms_share_states_until_their_text_differs(texts, tmp_path):
    plan = resolve(Study(study(texts), tmp_path / "runs"), missing="placeholder")
    assert [t.partition(", not")[0] for t in plan.assumed] == [
        f"corpus: {texts}",
        f"corpus of a phase: {texts.with_name('better.jsonl')}",
    ]
    made = prepare(study(texts), tmp_path / "runs")
    trunk, same, better = (arm.lineage.identities for arm in made.plan.arms)
    assert trunk == same[:5] == better[:5]
    assert not {*same[5:]} & {*better[5:]}
    again = resolve(Study(study(texts), tmp_path / "runs"), missing="placeholder")
    states = [[point.state for point in plan.points] for plan in (made.plan, again.plan)]
    assert (again.assumed, states[0]) == ((), states[1])
    # The identity of a state that reads one corpus is what it was before phases could have one.
    [alone] = prepare(
        study(texts, arms=[{"name": "a", "phases": [clm(4)]}]), tmp_path / "a"
    ).plan.arms
    assert alone.lineage.identities == trunk


def test_edited_text_of_a_phase_is_no_other_version_of_biphasic(texts, tmp_path):
    """A copy of a state's recipe on other text is no work of other code."""
    phases, runs = recipe(texts)["phases"], tmp_path / "runs"
    pretrain(recipe(texts), corpus=corpus(texts), root=runs, quiet=True)
    own = {key: value for key, value in recipe(texts).items() if key != "phases"}
    arms = [{"name": "pretrain", "phases": phases}]
    settings = {"corpus": corpus(texts), "recipe": own, "arms": arms}
    before, after = [], []
    for plans in (before, after):
        plan = resolve(Study(study(texts, **settings), runs), missing="placeholder").plan
        plans += [outdated_arms(plan), len(plan.assumed)]
        with texts.with_name("better.jsonl").open("a") as file:
            file.write("\n" + json.dumps({"text": SEEN + " more"}))
    assert (before, after) == ([[], 0], [[], 1])


def test_a_phase_reads_its_corpus_from_the_start_and_the_ledger_says_so(texts, tmp_path):
    state = pretrain(recipe(texts), corpus=corpus(texts), root=tmp_path / "runs", quiet=True)
    record = read(state)
    [name] = record["ground"]["corpora"]
    first, second = record["ledger"]
    assert "corpus" not in first
    assert second["corpus"] == record["ground"]["corpora"][name]
    folders = {Corpus(path).content_hash: path for path in tmp_path.glob("runs/store/data/*/train")}
    own = Corpus(folders[second["corpus"]])
    assert len(folders) == 2
    rows = RowPlan(own.lengths, [BatchShape(32, 4, 3)], data_seed=0)
    pieces = [piece for step in range(3) for row in rows.rows(step) for piece in row]
    assert second["documents"] == sum(piece.start == 0 for piece in pieces)
    assert second["tokens"] == sum(piece.end - piece.start + 2 for piece in pieces)
    # The same tokenizer, and the run's held-out text.
    sha256 = record["ground"]["tokenizer_sha256"]
    assert {Corpus(path).details.tokenizer_sha256 for path in folders.values()} == {sha256}
    heldout = Corpus(folders[record["ground"]["corpus_hash"]].with_name("heldout"))
    assert record["heldout_sha256"] == heldout.content_hash


def corpus(texts: Path, **changes) -> dict:
    return {"sources": [str(texts)], "vocab_size": 300, "heldout_fraction": 0.1, **changes}


def test_interrupted_after_each_update_equals_uninterrupted(texts, tmp_path):
    whole = pretrain(recipe(texts), corpus=corpus(texts), root=tmp_path / "whole", quiet=True)
    for _ in range(12):
        try:
            parts = pretrain(
                recipe(texts), corpus=corpus(texts), root=tmp_path / "parts", quiet=True,
                max_seconds=0,
            )  # fmt: skip
            break
        except StoppedError:
            continue
    assert parts.name == whole.name
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert file_sha256(parts / name) == file_sha256(whole / name)
    before, after = read(whole), read(parts)
    assert before["rows_sha256"] == after["rows_sha256"]
    assert before["ledger"] == after["ledger"]


def test_what_a_phase_does_not_set_is_as_in_the_run(texts, tmp_path):
    """A document is held out by both or by neither, and no tokenizer is trained anew."""
    settings = corpus(texts, min_characters=5, deduplicate=True)
    both = recipe(texts) | {"phases": [clm(1), mlm(1, corpus={"max_documents": 20})]}
    state = pretrain(both, corpus=settings, root=tmp_path / "runs", quiet=True)
    whole = CorpusConfig.model_validate(read(state)["recipe"]["phases"][1]["corpus"])
    assert whole == CorpusConfig(**{**settings, "vocab_size": None, "max_documents": 20})
    # It is the same run if a record's recipe is read again.
    [name] = read(state)["ground"]["corpora"]
    again = pretrain(read(state)["recipe"], corpus=settings, root=tmp_path / "runs", quiet=True)
    assert (again, [*read(again)["ground"]["corpora"]]) == (state, [name])
    texts_of = {
        path.parent.name: set((path / "documents.jsonl").read_text().splitlines())
        for path in tmp_path.glob("runs/store/data/*/train")
    }
    small, large = sorted(texts_of.values(), key=len)
    assert len(small) == 20
    assert small < large


def test_a_finished_corpus_of_the_same_text_leads_to_the_same_state(texts, tmp_path):
    state = pretrain(recipe(texts), corpus=corpus(texts), root=tmp_path / "runs", quiet=True)
    tokenizer = next(tmp_path.glob("runs/store/data/*/tokenizer"))  # both have the same
    made = CorpusConfig(**of(texts), tokenizer=str(tokenizer), heldout_fraction=0.1)
    build_corpus(made, tmp_path / "made", say=lambda _: None)
    finished = recipe(texts) | {"phases": [clm(3), mlm(3, corpus=str(tmp_path / "made"))]}
    other = pretrain(finished, corpus=corpus(texts), root=tmp_path / "runs", quiet=True)
    assert other == state


def test_a_corpus_of_a_phase_is_a_job_and_test_examples_are_looked_for_in_it(
    texts, tmp_path, make_task, cli
):
    task = make_task(tmp_path / "first")
    rows = [{"id": str(n), "text": t, "label": n} for n, t in enumerate([SEEN, "not there"])]
    (task / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = study(texts, tasks=[{"name": "first", "source": str(task)}])
    file, root = tmp_path / "study.yaml", tmp_path / "runs"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    planned = cli("study", "plan", file, "--root", root)[1]
    assert [line for line in planned.splitlines() if "reads better.jsonl from step 4" in line]
    code, _, said = cli("study", "jobs", file, "--root", root)
    assert code == 0, said
    assert "1 of 2 test examples occur in the training corpus" in said
    record = json.loads((root / "one/study.json").read_text())
    described = record["provenance"]["data"]["corpus of phases, better.jsonl"]
    assert described["documents"] > 100
    [arm] = [arm for arm in record["arms"] if arm["name"] == "better"]
    assert [phase.get("settings", {}).get("corpus") for phase in arm["phases"]] == [
        None,
        "better.jsonl",
    ]
    names = [path.parent.name for path in (root / "store/data").glob("*/train")]
    assert [load_job(root / "store", f"data-{name}").is_done() for name in names] == [True, True]
    assert all(job_path(root / "store", f"data-{name}").is_file() for name in names)
    code, out, err = cli("study", "verify", "one", "--root", root)
    assert "2 corpora" in out, out + err
    assert not [i for i in cli("study", "clean", "--root", root)[1].splitlines() if "corpora" in i]


def test_shares_of_languages_are_annealed(texts, tmp_path):
    """Of the two sources, the phase reads more of the smaller one than the run."""
    both = {**corpus(texts), "sources": [str(texts), str(texts.with_name("better.jsonl"))]}
    run = {**both, "share": {"temperature": 1}}
    phases = [mlm(2), mlm(2, corpus={"share": {"temperature": 0}})]
    state = pretrain(recipe(texts) | {"phases": phases}, corpus=run, root=tmp_path, quiet=True)
    ground, shares = read(state)["ground"], {}
    for path in tmp_path.glob("store/data/*/built.json"):
        content = Corpus(path.with_name("train")).content_hash
        sources = json.loads(path.read_text())["sources"].values()
        shares[content] = [source["train"]["share"] for source in sources]
    [later] = ground["corpora"].values()
    assert shares[later] == [0.5, 0.5]
    assert shares[ground["corpus_hash"]][0] != 0.5
    axes = {"phases.1.corpus.share.temperature": [0.3, 0.5]}
    arms = study(texts, corpus=run, arms=[{"phases": phases, "axes": axes}]).arms
    assert [arm.name for arm in arms] == ["pico-mlm40-2-mlm40.t0.3-4", "pico-mlm40-2-mlm40.t0.5-4"]


def test_texts_of_tasks_are_left_out_of_the_text_of_phases_too(texts, tmp_path, make_task):
    task = make_task(tmp_path / "first")
    (task / "test.jsonl").write_text(json.dumps({"id": "0", "text": SEEN, "label": 0}) + "\n")
    settings = corpus(texts, against=[str(task)], heldout_fraction=0.5)
    pretrain(recipe(texts), corpus=settings, root=tmp_path / "runs", quiet=True)
    built = [json.loads(path.read_text()) for path in tmp_path.glob("runs/store/data/*/built.json")]
    left_out = {n: c["left_out"] for one in built for n, c in one["sources"].items()}
    assert {n: counts["in_evaluation_task"] for n, counts in left_out.items()} == {
        "texts.jsonl": 0,
        "better.jsonl": 1,
    }


def test_a_state_with_a_phase_of_its_own_text_is_trained_on(texts, tmp_path):
    """Its recipe has all settings of that text, so the run goes on whatever is read next."""
    state = pretrain(recipe(texts), corpus=corpus(texts), root=tmp_path / "runs", quiet=True)
    made = adapt(
        state, tmp_path / "made", corpus=str(parent(state).parent), steps=2,
        root=tmp_path / "runs", quiet=True, format="hf",
    )  # fmt: skip
    assert made.is_dir()
    states = [read(path.parent) for path in tmp_path.glob("runs/store/states/*/state.json")]
    [later] = [one for one in states if one["step"] == 8]
    assert later["parent"] == state.name
    assert later["ledger"][:2] == read(state)["ledger"]
    assert "corpus" not in later["ledger"][2]


def parent(state: Path) -> Path:
    """Return the folder of the text of a state's run."""
    run = read(state)["ground"]["corpus_hash"]
    every = state.parents[1].glob("data/*/train")
    return next(path for path in every if Corpus(path).content_hash == run)


REFUSED = {
    "tokenizer": (
        {"corpus": {"tokenizer": "other"}}, ConfigError,
        "phases.1.corpus.tokenizer: all corpora of a run share it", "biphasic corpus build",
    ),
    "vocabulary": (
        {"corpus": {"vocab_size": 400}}, ConfigError, "phases.1.corpus.vocab_size: all corpora"
    ),
    "tasks": ({"corpus": {"against": ["sst2"]}}, ConfigError, "phases.1.corpus.against: all"),
    "held-out share": (
        {"corpus": {"heldout_fraction": 0.2}}, ConfigError, "corpus.heldout_fraction: all corpora"
    ),
    "unknown key": ({"corpus": {"sorces": 1}}, ConfigError, "key 'phases.1.corpus.sorces'"),
    "no path and no settings": (
        {"corpus": 5}, ConfigError, "phases.1.corpus: expected a mapping of settings (got 5)"
    ),
    "no text": ({"corpus": {"sources": ["none.txt"]}}, DataError, "none.txt: no such file"),
    "no column": (
        {"corpus": {"sources": [{"source": str(README), "column": "body"}]}}, DataError,
        "README.md: one document, without columns",
    ),
    "no corpus": ({"corpus": "nowhere"}, DataError, "nowhere: no finished corpus here"),
    "pairs": (
        {"corpus": {"max_tokens": 9}, "objective": "contrastive", "pairs": "p", "batch": 4},
        ConfigError, "phases.1.corpus: a phase that reads pairs has none",
    ),
    "a temperature of one source": (
        {"corpus": {"share": {"temperature": 0.3}}}, ConfigError,
        "phases.1.corpus: share: there is only one source",
    ),
    "settings of a finished corpus": (
        {"corpus": {"folder": "x", "max_tokens": 4}}, ConfigError, "'max_tokens' cannot change it"
    ),
}  # fmt: skip


@refusals(REFUSED)
def test_what_a_phase_cannot_read_is_refused_before_any_text_is_read(
    texts, tmp_path, given, error, parts
):
    phases = [clm(3), {"objective": "mlm", "steps": 3, **given}]
    settings = {"corpus": corpus(texts), "root": tmp_path / "runs", "quiet": True}
    refused(error, parts, pretrain, recipe(texts) | {"phases": phases}, **settings)
    assert not (tmp_path / "runs/store/states").exists()
    assert not [*tmp_path.glob("runs/store/data/*/tokenizer")]


def test_text_for_a_finished_run_corpus_must_be_named(texts, tmp_path):
    build_corpus(CorpusConfig(**corpus(texts)), tmp_path / "made", say=lambda _: None)
    run = {"corpus": str(tmp_path / "made"), "root": tmp_path / "runs", "quiet": True}
    phases = [clm(1), mlm(1, corpus={"max_documents": 9})]
    parts = ("phases.1.corpus: the run's corpus is finished", "give sources")
    refused(ConfigError, parts, pretrain, recipe(texts) | {"phases": phases}, **run)
    assert pretrain(recipe(texts), **run).is_dir()


def test_what_a_finished_corpus_holds_out_no_phase_reads(texts, tmp_path):
    settings = {**corpus(texts), "heldout_fraction": 0.4}
    build_corpus(CorpusConfig(**settings), tmp_path / "made", say=lambda _: None)
    run = {"corpus": str(tmp_path / "made"), "root": tmp_path / "runs", "quiet": True}
    own = {"sources": [str(texts)]}
    pretrain(recipe(texts) | {"phases": [clm(1), mlm(1, corpus=own)]}, **run)
    [train] = tmp_path.glob("runs/store/data/*/train")
    assert Corpus(train).content_hash == Corpus(tmp_path / "made/train").content_hash
    compared, made = CorpusConfig(**own | {"against": ["sst2"]}), CorpusConfig(folder=Path("made"))
    assert phase_corpus(compared, made, where="corpus").against == ("sst2",)


def test_a_study_in_full_reads_the_same_text(texts, tmp_path):
    """A phase that names no sources has its run's, also in a file from `--print-config`."""
    own = {"max_documents": 9}
    config = study(texts, arms=[{"name": "a", "phases": [clm(1), mlm(1, corpus=own)]}])
    again = parse_config(StudyConfig, yaml.safe_load(study_text(config)), where="full.yaml")
    one, other = (each.recipe_of(each.arms[0]).phases[1].corpus for each in (config, again))
    assert one == other
    assert one.sources == config.corpus.sources


def of_phase(run, **own):
    return phase_corpus(CorpusConfig(**own), CorpusConfig(**run), where="corpus")


def test_null_takes_a_setting_of_the_run_away(texts):
    run = {"sources": ["a", "b"], "max_tokens": 9, "share": {"temperature": 0.5}}
    assert of_phase(run, deduplicate=True).max_tokens == 9
    assert of_phase(run, max_tokens=None).max_tokens is None
    assert of_phase(run, share=None).share is None
    config = study(
        texts,
        corpus=corpus(texts, sources=[str(texts), str(texts.with_name("better.jsonl"))],
                      share={"temperature": 0.5}),
        arms=[{"name": "a", "phases": [clm(1), mlm(1, corpus={"share": None})]}],
    )  # fmt: skip
    again = parse_config(StudyConfig, yaml.safe_load(study_text(config)), where="full.yaml")
    for each in (config, again):
        assert each.recipe_of(each.arms[0]).phases[1].corpus.share is None


def test_one_source_of_a_phase_needs_no_share_of_the_run():
    run = {"sources": ["a", "b"], "share": {"temperature": 0.5}}
    assert of_phase(run, sources=["c"]).share is None
    assert of_phase(run, sources=["c", "d"]).share.temperature == 0.5
    own = {"sources": [{"source": "c", "share": 1}, {"source": "d", "share": 2}]}
    assert of_phase(run, **own).share is None


def test_libraries_of_the_run_are_those_of_a_phase_that_reads_them():
    run = {"sources": ["builtin:pydocs"], "libraries": ["numpy"]}
    assert of_phase(run, sources=["builtin:pydocs", "more"]).libraries == ("numpy",)
    assert of_phase(run, sources=["more"]).libraries is None


@pytest.mark.parametrize("is_study", [True, False])
def test_paths_of_a_phase_are_those_of_its_file(tmp_path, texts, is_study, monkeypatch):
    """Its relative sources change nothing else: copies are the run's."""
    folder = tmp_path / "project"
    folder.mkdir()
    run = {"sources": [str(texts)], "against": ["sc:tasks/one"], "copies": "copies"}
    own = {"sources": ["own.txt"], "against": ["sc:tasks/one"]}
    phases = [clm(1), mlm(1, corpus=own)]
    base = {key: value for key, value in recipe(texts).items() if key != "phases"}
    monkeypatch.chdir(tmp_path)
    if is_study:
        settings = {"name": "s", "title": "s", "corpus": run, "recipe": base, "tasks": [],
                    "arms": [{"name": "a", "phases": phases}]}  # fmt: skip
        (folder / "s.yaml").write_text(yaml.safe_dump(settings))
        config = load_study(folder / "s.yaml")
        found = config.recipe_of(config.arms[0])
    else:
        (folder / "r.yaml").write_text(yaml.safe_dump({**base, "phases": phases}))
        anchored = anchor_corpus(CorpusConfig(**run), folder)
        found = read_recipe(folder / "r.yaml", ()).on(anchored)
    corpus_of = found.phases[1].corpus
    assert corpus_of.against == (f"sc:{folder}/tasks/one",)
    assert corpus_of.sources[0].source == f"{folder}/own.txt"
    assert corpus_of.copies == folder / "copies"


def test_another_tokenizer_is_refused_before_text_is_tokenised(texts, tmp_path):
    other = CorpusConfig(**of(texts), vocab_size=310, heldout_fraction=0.1)
    build_corpus(other, tmp_path / "other", say=lambda _: None)
    phases = [clm(3), mlm(3, corpus=str(tmp_path / "other"))]
    settings = {"corpus": corpus(texts), "root": tmp_path / "runs", "quiet": True}
    parts = ("other: built with another tokenizer",)
    refused(DataError, parts, pretrain, recipe(texts) | {"phases": phases}, **settings)
    assert not [*tmp_path.glob("runs/store/data/*/train")]


def test_names_of_arms_have_what_their_phases_set(texts):
    axes = {"phases.1.corpus.max_documents": [10, 20]}
    phases = [clm(4), mlm(4, corpus={"sources": [str(texts)]})]
    names = [arm.name for arm in study(texts, arms=[{"phases": phases}]).arms]
    assert names == ["pico-clm-4-mlm40.texts.jsonl-8"]
    phases = [clm(4), mlm(4, corpus={})]
    arms = study(texts, arms=[{"phases": phases, "axes": axes}]).arms
    assert len({arm.name for arm in arms}) == 2
    assert len({np.str_(arm.phases[1].corpus.max_documents) for arm in arms}) == 2
