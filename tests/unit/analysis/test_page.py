import csv
import dataclasses
import io
import json
import re
import statistics
from itertools import combinations

import pytest
from fake_study import ARMS, TASKS, FakeStudy, seal_again
from scipy.stats import ttest_rel

from biphasic.analysis.figures.runs import arm_styles
from biphasic.analysis.figures.strips import strips_of
from biphasic.analysis.page.content import (
    MOST_COMPARISONS,
    columns_of,
    dataset_titles,
    paper_text,
    problem_groups,
    problems_csv,
    run_data,
    store_link,
)
from biphasic.analysis.page.render import (
    SHOWN_OF_MANY,
    few_arms,
    fill,
    page_styles,
    render,
)
from biphasic.analysis.records import Problem, load_records
from biphasic.analysis.scores.reference import reference_values
from biphasic.analysis.scores.source import paper_scores, study_scores
from biphasic.analysis.statistics.compare import families_of
from biphasic.analysis.tables.results import finetunings, format_table, task_notes
from biphasic.analysis.tables.text import comparison_lines, score_rows, score_tables


def loaded(folder, **settings):
    return load_records(*FakeStudy(steps=40, **settings).write(folder))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return loaded(tmp_path_factory.mktemp("good"))


def test_means_that_differ_by_rounding_alone_are_equal(tmp_path):
    # 19 right answers of 60 in both arms: the last bits of their means differ.
    right = {"mlm": (11, 4, 4), "clm": (12, 6, 1), "untrained": (3, 4, 3)}
    scores = {
        (arm, "pydocs-sc", 1e-4, seed): (number / 20,) * 2
        for arm, numbers in right.items()
        for seed, number in enumerate(numbers)
    }
    records = loaded(
        tmp_path, arms=ARMS[:3], tasks=TASKS[:1], learning_rates=(1e-4,), seeds=(0, 1, 2),
        scores=scores,
    )  # fmt: skip
    page = render(records, store="../store")
    assert len(re.findall('class="number best"[^>]*><button[^>]*>31.67', page)) == 2
    bold = [
        row
        for row in format_table(records).columns[-1].cells
        if row.style == "bold" and "31.67" in row.plain
    ]
    assert len(bold) == 2


def test_the_verdict_rests_on_paired_tests_corrected_for_all_pairs(records):
    scores = study_scores(records)
    found = families_of(scores)["pydocs-tc"]
    by_seed = {arm[0]: [*scores.get(arm[0], "pydocs-tc").by_seed.values()] for arm in ARMS}
    best = max(by_seed, key=lambda name: statistics.fmean(by_seed[name]))
    p_values = {
        frozenset(pair): ttest_rel(by_seed[pair[0]], by_seed[pair[1]]).pvalue
        for pair in combinations(by_seed, 2)
    }
    smallest_first = sorted(p_values, key=p_values.__getitem__)
    adjusted, least = {}, 0.0
    for place, pair in enumerate(smallest_first):
        least = max(least, p_values[pair] * (len(p_values) - place))
        adjusted[pair] = min(least, 1.0)
    for comparison in found.with_best:
        pair = frozenset((best, comparison.second))
        assert comparison.p_adjusted == pytest.approx(adjusted[pair])
        assert comparison.is_clear == (adjusted[pair] < 0.05)
    assert found.has_clear_best == all(
        adjusted[frozenset((best, o))] < 0.05 for o in by_seed if o != best
    )
    second = found.with_best[0].second
    gap = statistics.fmean(by_seed[best]) - statistics.fmean(by_seed[second])
    lines = "\n".join(comparison_lines(scores))
    assert f"is {gap:.2f} points above" in lines
    assert "would be clear four times in five, corrected for 10 comparisons" in lines


def test_arms_without_a_score_are_named_as_not_compared(tmp_path):
    """One arm diverged on two tasks, another lacks the second one; nothing has run on the third."""
    rate, first, second = 1e-4, "pydocs-sc", "pydocs-tc"
    records = loaded(
        tmp_path, arms=ARMS[:4], tasks=TASKS[:3], learning_rates=(rate,), seeds=(0, 1, 2),
        diverged={("clm", task, rate, seed) for task in (first, second) for seed in range(3)},
        missing={("mlm", second, rate, seed) for seed in range(3)}
        | {(arm[0], "pydocs-qa", rate, seed) for arm in ARMS for seed in range(3)},
    )  # fmt: skip
    scores = study_scores(records)
    lines = "\n".join(comparison_lines(scores))
    assert "Without a score: CLM.\n" in lines
    assert "Without a score: MLM and CLM.\n" in lines


def test_a_pretrained_model_as_it_is_is_not_called_untrained(tmp_path):
    folder, store = FakeStudy(steps=40, arms=ARMS[:2], tasks=TASKS[:1]).write(tmp_path)
    study = json.loads((folder / "study.json").read_text())
    study["arms"][0] |= {"name": "opened", "label": "Opened"}
    for run in study["runs"]:
        run["arm"] = run["arm"].replace("untrained", "opened")
    assert "untrained" in render(load_records(folder, store), store="store")
    for arm in study["arms"]:
        arm |= {"model": "smol", "continues": "smol"}
    (folder / "study.json").write_text(json.dumps(study))
    records = load_records(folder, store)
    html = render(records, store="store")
    assert "untrained" not in html
    assert "; Opened 9.01." in html  # the level of its loss
    styles = arm_styles(records.arms)
    assert styles["opened"].color != styles["mlm"].color


@pytest.mark.parametrize(("numbers", "expected"), [((16, 64), 8), ((16, 16), 4)])
def test_tasks_share_a_fine_tuning_if_all_its_settings_are_equal(tmp_path, numbers, expected):
    tasks = tuple((name, *TASKS[3][1:]) for name in ("nq", "mldr"))
    study = FakeStudy(
        steps=40, arms=ARMS[:2], tasks=tasks, learning_rates=(1e-4,), seeds=(0, 1)
    ).write(tmp_path)
    number_of = dict(zip(("nq", "mldr"), numbers, strict=True))
    for path in (study[1] / "finetunes").glob("*/result.json"):
        result = json.loads(path.read_text())
        protocol = {"train_examples": number_of[result["task"]]}
        path.write_text(json.dumps({**result, "trained_on": "msmarco", "protocol": protocol}))
        seal_again(path.parent)
    assert len(finetunings(load_records(*study))) == expected


def test_compute_time_includes_the_scoring_of_zero_shot_tasks(tmp_path):
    tasks = (TASKS[0], ("pydocs-zs", "zs", "Zero-shot", "ndcg_at_10", 0.2))
    records = loaded(tmp_path, arms=ARMS[:2], tasks=tasks, learning_rates=(1e-4,), seeds=(0,))
    # 40 steps of 0.93 s, two fine-tunings and two zero-shot runs of 7.25 s.
    page = re.sub("<.*?>", "", render(records, store="../store"))
    assert "1 min 6 scompute time" in page
    assert "2 fine-tunings took 14.5 s. 2 zero-shot runs took 14.5 s." in page


def test_scores_name_the_task_that_encoders_were_trained_on(tmp_path):
    tasks = tuple((name, *TASKS[3][1:]) for name in ("msmarco", "nq"))
    folder, store = FakeStudy(
        steps=40, arms=ARMS[:2], tasks=tasks, learning_rates=(1e-4,), seeds=(0, 1)
    ).write(tmp_path)
    study = json.loads((folder / "study.json").read_text())
    study["tasks"][1]["trained_on"] = "msmarco"
    (folder / "study.json").write_text(json.dumps(study))
    rows = score_rows(study_scores(load_records(folder, store)))
    assert {row["dataset"]: row["trained_on"] for row in rows} == {
        "msmarco": None, "nq": "msmarco", "IR Average": None
    }  # fmt: skip


def test_all_of_several_best_scores_are_bold_in_terminals(tmp_path):
    scores = {
        (arm, "pydocs-sc", 1e-4, seed): (0.5, 0.4 if arm == "untrained" else 0.5)
        for arm in ("untrained", "mlm", "clm")
        for seed in (0, 1)
    }
    found = loaded(tmp_path, arms=ARMS[:3], tasks=TASKS[:1], learning_rates=(1e-4,), seeds=(0, 1),
                   scores=scores)  # fmt: skip
    [table] = score_tables(study_scores(found))
    assert [str(cell.style) for cell in table.columns[1].cells] == ["", "bold", "bold"]


def test_of_many_arms_the_page_shows_the_best_and_the_untrained(tmp_path):
    many = [(f"arm-{n}", f"Arm {n}", "MLM", (("mlm", 1.0),), 0.01 * n) for n in range(28)]
    records = loaded(tmp_path, arms=(*many, ARMS[0]), tasks=TASKS[:1], seeds=(0, 1),
                     learning_rates=(1e-4,))  # fmt: skip
    scores = study_scores(records)
    few = few_arms(records, scores)
    styles = page_styles(records, few)
    means = {m.name: scores.get(m.name, "pydocs-sc").estimate.mean for m in scores.models}
    best = sorted(means, key=means.__getitem__, reverse=True)[:SHOWN_OF_MANY]
    assert {arm.name for arm in few.arms} == {*best, "untrained"}
    assert {styles[name].variable for name in {*means} - {*best, "untrained"}} == {"muted"}
    family = families_of(scores)["pydocs-sc"]
    rest = family.with_best[MOST_COMPARISONS:]
    html = render(records, store="store")
    clear = sum(other.is_clear for other in rest)
    assert f"Clearly behind, of {len(rest)} further arms: {clear}." in html


def test_no_chart_calls_another_arm_the_best_than_the_table(records):
    scores, task = study_scores(records), records.tasks[0].name
    [best] = scores.finished.best(task)
    shown = dataclasses.replace(
        scores, models=tuple(one for one in scores.models if one.name != best)
    )
    titles, styles = dataset_titles(records, scores), arm_styles(records.arms)
    for of_all, is_marked in ((None, True), (scores, False)):
        points = strips_of(shown, styles, titles, every=of_all).points
        assert points[points["panel"] == task]["is_best"].any() == is_marked


def test_few_arms_stay_as_they_are(records):
    assert few_arms(records, study_scores(records)) is records
    assert page_styles(records, records) == arm_styles(records.arms)


def test_problems_beyond_the_first_are_counted_and_named_in_the_file():
    problems = [Problem("missing", f"run {n}") for n in range(250)] + [Problem("mixed", "a,b")]
    html = fill("page/problems.html.j2", problems=problem_groups(problems))
    assert "Missing (250)" in html
    assert re.findall("<li>(.*?)</li>", html) == [*(f"run {n}" for n in range(100)), "a,b"]
    assert re.findall("And (.*?) more", html) == ["150"]
    assert "Inconsistent (1)" in html
    rows = [*csv.reader(io.StringIO(problems_csv(problems)))]
    assert len(rows) == 1 + 251
    assert rows[-1] == ["mixed", "a,b"]


def test_the_notice_counts_problems_by_kind(records):
    # Arms of other machines, or made by other code, are in all averages.
    for problems in ([Problem("mixed", "a"), Problem("code", "b")], [Problem("missing", "c")]):
        page = render(dataclasses.replace(records, problems=tuple(problems)), store="../store")
        notice = re.sub("<.*?>", "", re.findall('<p class="notice">.*?</p>', page)[0])
        kinds = ["inconsistent", "made by other code", "missing"]
        named = [kind for kind in kinds if f"1 {kind}" in notice]
        assert named == (kinds[:2] if len(problems) == 2 else kinds[2:])
        assert "excluded" not in notice


def test_links_are_relative_and_quoted(tmp_path):
    page = tmp_path / "a study" / "report" / "report.html"
    assert store_link(page, tmp_path / "störe #1") == "../../st%C3%B6re%20%231"


def test_arms_whose_inputs_are_cut_differently_are_named(tmp_path):
    """Other tokenizers make other numbers of tokens of a text."""
    folder, store = FakeStudy(steps=40, arms=ARMS[:3], tasks=TASKS[:1], seeds=(0, 1)).write(
        tmp_path
    )
    arm_of = {run.id: run.arm for run in load_records(folder, store).runs}
    for cuts, expected in (
        ({"untrained": 7, "mlm": 7, "clm": 7}, "Cut by the length limit: 7 of test."),
        ({"untrained": 0, "mlm": 0, "clm": 9}, "Cut by the length limit: 9 of test (CLM)."),
        ({"untrained": 7, "mlm": 7, "clm": 9},
         "Cut by the length limit: 7 of test (Untrained and MLM); 9 of test (CLM)."),
    ):  # fmt: skip
        for path in store.glob("finetunes/*/result.json"):
            result = json.loads(path.read_text())
            number = cuts[arm_of[result["id"]]]
            path.write_text(json.dumps({**result, "num_truncated": {"train": 0, "test": number}}))
            seal_again(path.parent)
        assert task_notes(load_records(folder, store), "pydocs-sc") == [expected]


def test_the_papers_values_are_next_to_the_study_s(tmp_path):
    # 610M, MLM at 40 % for 42,000 steps on SST-2: 95.30 or so in the paper's table C.1.
    study = FakeStudy(steps=40, arms=ARMS[1:3], tasks=(("sst2", "sc", "SST-2", "accuracy", 0.9),))
    folder, store = study.write(tmp_path)
    path = folder / "study.json"
    record = json.loads(path.read_text())
    record["arms"][0] |= {
        "model": "610m", "steps": 42_000, "group": "base",
        "phases": [{"objective": "mlm", "steps": 42_000, "mask_rate": 0.4}],
    }  # fmt: skip
    path.write_text(json.dumps(record))
    records = load_records(folder, store)
    scores, paper = study_scores(records), paper_scores()
    expected = paper.get("610M-mlm40-42k", "SST-2").estimate
    values = reference_values(scores, paper)
    (column,) = columns_of(scores, values)
    text = f"paper: {expected.mean:.2f} ({expected.half_width:.2f})"
    first, second = (arm.name for arm in records.arms)
    assert [paper_text(column.paper(name)) for name in (first, second)] == [text, ""]
    assert paper_text(None) == ""
    data = run_data(records, [scores], values, store_link(path, store))
    assert [cell.get("paper") for cell in data["cells"]] == [text, None]
