"""One table of scores, from a study's records or from the paper's."""

import dataclasses
import json

import pytest
from fake_study import ARMS, TASKS, FakeStudy
from made_scores import made_scores

from biphasic.analysis.claims.rows import AVERAGE, rows_of
from biphasic.analysis.estimate import Estimate
from biphasic.analysis.records import load_records
from biphasic.analysis.scores.source import paper_scores, replicate_of, study_scores
from biphasic.analysis.scores.table import DatasetInfo, with_averages
from biphasic.analysis.tables.markup import make_sheets
from biphasic.facts import FIRST_KINDS, KindFacts
from biphasic.records import PhaseRecord


def test_the_paper_has_46_distinct_models_and_repeats_agree():
    scores = paper_scores()
    assert (len(scores.models), len(scores.distinct)) == (50, 46)
    assert len({model.name for model in scores.models}) == 50
    assert len(scores.cells) == 800
    assert {score.estimate.num_seeds for score in scores.cells.values()} == {5}
    assert {score.by_seed for score in scores.cells.values()} == {None}
    for twin in ("pfs:610M-mlm40-42k", "cpt:610M-mlm40-42k"):
        for dataset in scores.datasets:
            assert scores.get(twin, dataset.name) == scores.get("610M-mlm40-42k", dataset.name)


TWO = (("first", "sc", "First", "accuracy", 0.5), ("second", "sc", "Second", "accuracy", 0.5),
       ("third", "qa", "Third", "f1", 0.5))  # fmt: skip


def two_datasets(**changes):
    # Seed 0: 0.60 and 0.90; seed 1: 0.80 and 0.70; their averages 0.75 and 0.75.
    scores = {
        ("mlm", "first", 1e-4, 0): (0.5, 0.60), ("mlm", "first", 1e-4, 1): (0.5, 0.80),
        ("mlm", "second", 1e-4, 0): (0.5, 0.90), ("mlm", "second", 1e-4, 1): (0.5, 0.70),
    }  # fmt: skip
    settings = {"arms": ARMS[1:2], "tasks": TWO, "learning_rates": (1e-4,), "seeds": (0, 1)}
    return FakeStudy(scores=scores, steps=40, **(settings | changes))


def test_an_average_is_taken_per_seed_first(tmp_path):
    scores = study_scores(load_records(*two_datasets().write(tmp_path)))
    assert [d.name for d in scores.datasets] == ["first", "second", "SC Average", "third"]
    average = scores.get("mlm", "SC Average")
    assert average.by_seed == {0: pytest.approx(75.0), 1: pytest.approx(75.0)}
    # Each dataset alone is wide; that their errors cancel is seen per seed only.
    assert average.estimate.half_width == pytest.approx(0.0, abs=1e-9)
    assert scores.get("mlm", "first").estimate.half_width > 100


def test_a_seed_that_lacks_a_dataset_is_left_out_of_the_average(tmp_path):
    study = two_datasets(missing={("mlm", "second", 1e-4, 0)})
    scores = study_scores(load_records(*study.write(tmp_path)))
    average = scores.get("mlm", "SC Average")
    assert average.by_seed == {1: pytest.approx(75.0)}
    assert average.estimate.half_width is None
    assert not average.is_complete


def test_a_model_that_lacks_a_dataset_has_no_average(tmp_path):
    missing = {("mlm", "second", 1e-4, seed) for seed in (0, 1)}
    scores = study_scores(load_records(*two_datasets(missing=missing).write(tmp_path)))
    assert scores.get("mlm", "SC Average").estimate is None
    bare = dataclasses.replace(scores, cells={("mlm", "first"): scores.get("mlm", "first")})
    assert ("mlm", "SC Average") not in with_averages(bare).cells


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 3, 0, 1), (0, 2, 1)])
def test_probes_have_an_average_of_their_own_beside_fine_tunings(order):
    metrics = FIRST_KINDS["sc"].metrics
    probe = KindFacts("sequence classification, linear probe", metrics, is_trained=False)
    about = (None, None, probe, probe)
    every = [DatasetInfo(f"d{i}", "SC", "accuracy", about=of) for i, of in enumerate(about)]
    by_seed = [[70.0, 72.0], [80.0, 84.0], [60.0], [50.0]]  # a probe has one seed
    cells = {("a", f"d{i}"): by_seed[i] for i in order}
    scores = with_averages(made_scores(cells, datasets=[every[i] for i in order]))
    assert scores == with_averages(scores)
    tuned = scores.get("a", "SC Average")
    assert (tuned.by_seed, tuned.is_complete) == ({0: 75.0, 1: 78.0}, True)
    sheet = next(one for one in make_sheets(scores) if one.name == "sc")
    assert sheet.title == "made: sequence classification, accuracy"
    assert sheet.columns[-1] == "Average"
    [row] = [row for row in rows_of(scores) if (row.task, row.dataset) == ("SC", AVERAGE)]
    assert row.mean == 76.5
    if len(order) == 3:
        assert len(scores.averages) == 1
    else:
        assert scores.get("a", "SC probes Average").by_seed == {0: 55.0}


def test_a_study_s_scores_are_percent_points_by_its_convention(tmp_path):
    records = load_records(*two_datasets().write(tmp_path))
    # Mean 70, s = 10 * sqrt(2), standard error 10.
    paper = study_scores(records, convention="paper").get("mlm", "first").estimate
    assert paper == Estimate(pytest.approx(70.0), pytest.approx(19.6), 2)
    standard = study_scores(records).get("mlm", "first").estimate
    assert standard.half_width == pytest.approx(127.06204736432095)


@pytest.mark.parametrize("known", [{"first": "x", "second": "x"}, {}])
def test_datasets_have_the_hash_of_their_examples(tmp_path, known):
    study = two_datasets(provenance={"data": {"tasks": known}})
    scores = study_scores(load_records(*study.write(tmp_path)))
    names = ("first", "second", "SC Average", "third")
    assert [one.data for one in scores.datasets] == [known.get(name, "") for name in names]


def test_older_studies_have_their_steps_from_the_ledger(tmp_path):
    scores = study_scores(load_records(*FakeStudy(steps=40, tasks=TASKS[:1]).write(tmp_path)))
    models = {model.name: model for model in scores.models}
    model = models["clm-25-mlm-75"]
    assert (model.clm_steps, model.mlm_steps, model.total_steps) == (10, 30, 40)
    assert model.flops == pytest.approx(40 * 8192 * 6.0 * 1.9e6)
    assert model.parameters is None
    assert models["untrained"].flops is None


def test_a_study_s_factors_come_from_its_record(tmp_path):
    folder, store = FakeStudy(steps=40, arms=ARMS[3:4], tasks=TASKS[:1]).write(tmp_path)
    record = json.loads((folder / "study.json").read_text())
    record["arms"][0] |= {
        "model": "210m", "parameters": 211, "group": "pfs", "continues": "CLM",
        "continued_steps": 30, "is_final": False,
        "phases": [{"objective": "clm", "steps": 10},
                   {"objective": "alternate", "steps": 30, "mask_rate": 0.3,
                    "steps_by_objective": {"clm": 10, "mlm": 20}}],
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(record))
    model = study_scores(load_records(folder, store)).models[0]
    assert (model.size, model.parameters, model.group) == ("210M", 211, "pfs")
    assert (model.clm_steps, model.mlm_steps, model.mask_rate) == (20, 20, 0.3)
    assert (model.start, model.continued_steps, model.is_final) == ("CLM", 30, False)


def test_texts_of_pairs_are_no_predicted_tokens(tmp_path):
    records = load_records(*two_datasets().write(tmp_path))
    [arm] = records.arms
    entry = arm.ledger[-1].model_copy(update={"phase": 1, "objective": "contrastive"})
    state = arm.state.model_copy(update={"ledger": (*arm.ledger, entry)})
    longer = dataclasses.replace(records, arms=(dataclasses.replace(arm, state=state),))
    [before], [after] = (study_scores(each).models for each in (records, longer))
    assert after.labels == before.labels > 0
    assert after.flops == 2 * before.flops


@pytest.mark.parametrize(
    ("phases", "objective", "rate"),
    [
        ([(20, 0.4, None), (20, 0.4, None)], "MLM", 0.4),
        ([(40, 0.3, 0.05)], "MLM, masking 30, 5 %", None),
        ([(20, 0.3, None), (10, 0.15, None), (10, 0.05, None)], "MLM, masking 30, 15, 5 %", None),
        ([(10, None, None), (20, 0.3, 0.15), (10, 0.15, None)], "MLM, masking 30, 15 %", None),
    ],
)
def test_a_model_whose_masking_rate_changed_is_at_none_of_the_rates(
    tmp_path, phases, objective, rate
):
    records = load_records(*FakeStudy(steps=40, arms=ARMS[1:2], seeds=(0, 1)).write(tmp_path))
    [arm] = records.arms
    changed = tuple(
        PhaseRecord(objective="mlm", steps=steps, mask_rate=first, final_mask_rate=last)
        for steps, first, last in phases
    )
    record = arm.record.model_copy(update={"phases": changed})
    [model] = study_scores(
        dataclasses.replace(records, arms=(dataclasses.replace(arm, record=record),))
    ).models
    assert (model.objective, model.mask_rate) == (objective, rate)
    # Continued by its last phase, it has the rate of this one.
    record = record.model_copy(update={"continued_steps": phases[-1][0], "continues": "MLM"})
    [model] = study_scores(
        dataclasses.replace(records, arms=(dataclasses.replace(arm, record=record),))
    ).models
    assert (model.mask_rate is None) == (len(phases) == 1 and rate is None)


def test_an_encoder_that_attends_otherwise_is_another_model(tmp_path):
    folder, store = FakeStudy(steps=40, arms=ARMS[:2], seeds=(0, 1)).write(tmp_path)
    study = json.loads((folder / "study.json").read_text())
    [*_, mlm] = study["arms"]
    study["arms"].append({**mlm, "name": "causal", "label": "causal", "attention": "causal"})
    runs = [run for run in study["runs"] if run["arm"] == mlm["name"]]
    study["runs"] += [{**run, "arm": "causal"} for run in runs]
    (folder / "study.json").write_text(json.dumps(study))
    records = load_records(folder, store)
    scores = study_scores(records)
    assert [model.objective for model in scores.distinct] == ["none", "MLM", "MLM, causal"]
    both = (arm.record.model_copy(update={"phases": ()}) for arm in records.arms[1:])
    assert len({replicate_of(record) for record in both}) == 2  # not two runs of one recipe
    rows = {row.model: row for row in rows_of(scores)}
    assert (rows["mlm"].objective, rows["causal"].objective) == ("MLM", "MLM, causal")
