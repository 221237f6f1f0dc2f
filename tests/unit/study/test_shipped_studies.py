"""The studies that are shipped: the reference grid number for number, and its miniature."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from biphasic.data.pairs import Pair, write_pairs
from biphasic.study.plan.plan import Plan
from biphasic.study.plan.summary import PlanSummary, summarise_plan
from biphasic.study.resolve import resolve
from biphasic.study.settings.load import load_study
from biphasic.study.study import Study

ROOT = Path(__file__).parents[3]
ACCOUNTING = ROOT.parent / "shared" / "paper" / "accounting.json"


def planned(name: str, root: Path) -> tuple[Plan, PlanSummary]:
    config = load_study(ROOT / "studies" / f"{name}.yaml")
    plan = resolve(Study(config, root), missing="placeholder").plan
    return plan, summarise_plan(plan)


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, PlanSummary]:
    return planned("paper", tmp_path_factory.mktemp("store"))


def test_the_reference_grid_has_the_numbers_of_the_study(paper):
    _, summary = paper
    assert (summary.num_final, summary.num_checkpoints) == (38, 50)
    assert (summary.num_trainings, summary.num_evaluations) == (15_000, 18_000)
    assert summary.num_reused == 3_000
    groups = {group.name: (group.num_arms, group.new.steps) for group in summary.groups}
    assert groups == {"base": (15, 630_000), "pfs": (17, 130_000), "cpt": (6, 52_000)}
    assert summary.shared.steps == 812_000
    assert summary.shared.tokens == 812_000 * 1152 * 2048
    assert summary.alone.steps == 630_000 + 5 * 12_000 + 5 * 22_000 + 7 * 42_000 + 2 * 162_000
    assert {
        task.name: task.trained_on for task in summary.tasks if task.trained_on != task.name
    } == {
        "nq": "msmarco",
        "mldr": "msmarco",
    }


@pytest.mark.skipif(not ACCOUNTING.is_file(), reason="the study's accounting is not here")
def test_the_reference_grid_has_the_names_of_the_study_and_its_new_steps(paper):
    plan, _ = paper
    models = json.loads(ACCOUNTING.read_text())["models"]
    assert {point.name for point in plan.points} == {model["name"] for model in models}
    new: dict[str, int] = {}
    for segment in plan.segments:
        new[segment.arm.name] = new.get(segment.arm.name, 0) + segment.steps
    for model in models:
        if model["group"] != "intermediate":
            assert new[model["name"]] == model["new_steps"], model["name"]


def graph(plan: Plan, scale: int) -> list[tuple[Any, ...]]:
    """Describe a plan without names: which arm trains what, and after which state."""
    arms = {arm.name: index for index, arm in enumerate(plan.arms)}
    ends = {s.id: (arms[s.arm.name], s.end // scale) for s in plan.segments}
    segments = [
        (arms[s.arm.name], s.start // scale, s.end // scale, ends.get(s.parent or ""))
        for s in plan.segments
    ]
    points = [(arms[p.arm.name], p.step // scale, *ends[p.state]) for p in plan.points]
    objectives = [
        [(p.phase.objective, p.start // scale, getattr(p.phase, "mlm_probability", None))]
        for arm in plan.arms
        for p in arm.recipe.placed_phases
    ]
    sizes = [str(arm.recipe.model) for arm in plan.arms]
    return [*segments, *points, *map(tuple, objectives), tuple(sizes.index(s) for s in sizes)]


def test_the_miniature_has_the_same_graph_arm_for_arm(paper, tmp_path):
    micro, summary = planned("paper-micro", tmp_path)
    assert graph(paper[0], 100) == graph(micro, 1)
    assert summary.shared.steps == 8_120
    assert summary.num_trainings == 50 * 4 * 30


@pytest.mark.parametrize(
    ("name", "num_arms"), [("detour", 6), ("alternation", 7), ("quickstart", 4)]
)
def test_the_others_plan_too(name, num_arms, tmp_path):
    plan, summary = planned(name, tmp_path)
    assert (len(plan.arms), summary.num_final) == (num_arms, num_arms)
    compared = {arm.recipe.total_steps for arm in plan.arms} - {0}
    # Equal steps, or the model that others go on from.
    assert len(compared) == 1 or name == "detour"
    assert not list(tmp_path.iterdir())  # looking costs nothing and leaves nothing


def test_the_study_of_two_languages_runs_and_its_report_opens(tmp_path, cli, unprobed, undrawn):
    shutil.copytree(ROOT / "studies/languages", tmp_path / "languages")
    raw = yaml.safe_load((ROOT / "studies/languages.yaml").read_text("utf-8"))
    raw["recipe"]["learning_rate"] = {"peak": 1e-2}
    raw["finetuning"] |= {"seeds": [0, 1], "protocol": {"max_steps": 2, "max_seqlen": 64}}
    for arm in raw["arms"]:
        for phase in arm.get("phases", ()):
            phase["steps"] = 2
    (tmp_path / "languages.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    run = ("study", "run", tmp_path / "languages.yaml", "--root", tmp_path / "runs")
    code, out, err = cli(*run, "--workers", "1")
    assert code == 0, err
    assert "Annealed shares" in out
    page = (tmp_path / "runs/languages/report/report.html").read_text("utf-8")
    assert "Shares of two languages" in page
    record = json.loads((tmp_path / "runs/languages/study.json").read_text())
    data = record["provenance"]["data"]
    shares = [data[f"corpus of phases, text.jsonl:en.text.jsonl:es.t{t}"] for t in ("0", "0.5")]
    assert shares[0]["tokens"] < shares[1]["tokens"] < data["training corpus"]["tokens"]
    assert cli("study", "verify", tmp_path / "runs/languages")[0] == 0
    assert cli("study", "report", tmp_path / "runs/languages")[0] == 0  # from its saved settings
    assert "finished" in cli("study", "status", tmp_path / "runs/languages")[1]
    # Arms with phases in common share their states.
    segments = {arm["name"]: arm["segments"] for arm in record["arms"]}
    assert segments["annealed"][:1] == segments["sizes"][:1]
    plan = resolve(
        Study(load_study(tmp_path / "languages.yaml"), tmp_path / "runs"), missing="placeholder"
    ).plan
    assert plan.assumed == ()


def test_llm2vec_s_recipe_runs_from_pairs_to_a_report(tmp_path, text_file, cli, unprobed, undrawn):
    rows = [Pair(f"array of rows {n}", f"holds tokens and weights {n}") for n in range(40)]
    write_pairs(tmp_path / "pairs", rows, origin={})
    raw = yaml.safe_load((ROOT / "studies/llm2vec.yaml").read_text("utf-8"))
    raw["corpus"] = {"sources": [str(text_file)], "vocab_size": 320}
    raw["recipe"] |= {"model": "pico", "learning_rate": {"peak": 1e-2}, "max_seqlen": 64}
    labels = "".join(f"array of rows {n},{n % 2}\n" for n in range(20))
    (tmp_path / "labels").mkdir()
    for split in ("train", "dev", "test"):
        text = f"text,label\n{labels.replace('rows', f'{split} rows')}"
        (tmp_path / f"labels/{split}.csv").write_text(text)
    raw["tasks"] = [{"name": "labels", "source": "sc:labels", "protocol": {"train": "head"}}]
    raw["finetuning"] |= {"protocol": {"max_seqlen": 64}}
    for arm in raw["arms"]:
        for phase in arm["phases"]:
            phase.update({"steps": 2, "learning_rate": {"peak": 1e-2}})
            phase.update({"batch": 4, "heldout_fraction": 0.2} if "batch" in phase else {})
    (tmp_path / "llm2vec.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    root = tmp_path / "runs"
    code, out, err = cli("study", "plan", tmp_path / "llm2vec.yaml", "--root", root)
    assert code == 0, err
    assert "both" in out
    run = ("study", "run", tmp_path / "llm2vec.yaml", "--root", root, "--workers", "1")
    code, out, err = cli(*run)
    assert code == 0, err
    assert "MNTP and pairs, all weights" in out
    record = json.loads((root / "llm2vec/study.json").read_text())
    segments = {arm["name"]: arm["segments"] for arm in record["arms"]}
    assert segments["both"][:2] == segments["mntp"]  # shared, by identity
