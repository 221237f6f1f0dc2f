"""Our own objectives and optimizers keep all rules; for each rule, a plugin that breaks it."""

import math
import re
from pathlib import Path

import pytest
import torch

from biphasic.config import Config, parse_config
from biphasic.errors import ConfigError
from biphasic.model.loading.hub import fetch_model
from biphasic.objectives.phases import Phase
from biphasic.testing import (
    RULES,
    ObjectiveRules,
    OptimizerRules,
    check_objective,
    check_optimizer,
    small_model,
    small_vocabulary,
)
from biphasic.training.optimizers.registry import AnyOptimizer
from plugin_files import PAGE, STRIDE, page_code


class Settings(Config):
    phase: Phase | None = None
    optimizer: AnyOptimizer | None = None


def phase(**settings):
    return parse_config(Settings, {"phase": {"steps": 4, **settings}}, where="x").phase


def optimizer(**settings):
    return parse_config(Settings, {"optimizer": settings}, where="x").optimizer


BOTH = [{"objective": "mlm"}, {"objective": "clm"}]


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "clm"},
        {"objective": "mlm"},
        {"objective": "mntp", "selection": "word"},
        {
            "objective": "mlm",
            "final_mlm_probability": 0.2,
            "selection": "span",
            "replacement": "bert",
        },
        {"objective": "diffusion"},
        {"objective": "mix", "objectives": BOTH, "shares": [0.5, 0.5]},
        {"objective": "alternate", "objectives": BOTH, "every": 1},
    ],
    ids=lambda settings: "-".join(map(str, settings.values()))[:30],
)
def test_our_objectives_keep_all_rules(settings):
    check_objective(phase(**settings))


def test_an_objective_with_rows_of_its_own_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"contrastive: reads pairs;"):
        check_objective(phase(objective="contrastive", pairs=str(tmp_path), batch=4))


@pytest.mark.parametrize("settings", [{}, {"name": "muon"}], ids=["adamw", "muon"])
def test_our_optimizers_keep_all_rules(settings):
    check_optimizer(optimizer(**settings))


def of_file(folder, source, *edits):
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    path = folder / "plugin.py"
    path.write_text(source, encoding="utf-8")
    return path


TEXTS = "np.concatenate(texts)[:: self.every]"
RETURN = "        return (Supervision("
BROKEN = {
    "rows": [
        ("rows = batch.packed", "rows = batch.packed.part(0, 1)"),
        ("in batch.texts", "in batch.part(0, 1).texts"),
    ],
    "positions": [(TEXTS, f"{TEXTS}[::-1].copy()")],
    "specials": [("in batch.texts", "in rows.spans")],
    "directions": [("frozenset({False})", "frozenset({True})")],
    "pure": [("[:: self.every]", "[np.random.randint(9) :: self.every]")],
    "draws": [("[:: self.every]", "[np.random.default_rng(mask_seed).integers(3) :: self.every]")],
    "resume": [
        ("class Stride", "_first = []\n\n\nclass Stride"),
        (
            "    def supervise(",
            "    def at(self, step, *, num_steps):\n"
            "        _first.clear()\n"
            "        return self\n\n"
            "    def supervise(",
        ),
        ("[:: self.every]", "[min(len(_first), 1) :: self.every]"),
        (RETURN, f"        _first.append(positions)\n{RETURN}"),
    ],
    "determinants": [
        (
            "    def supervise(",
            "    def determinants(self, mask_seed):\n"
            "        return {'name': 'stride'}\n\n"
            "    def supervise(",
        )
    ],
}  # fmt: skip
"""Edits of an objective that keeps all rules, by the rule that is broken then."""


def test_a_file_that_keeps_the_rules_passes(tmp_path):
    check_objective(phase(objective=f"{of_file(tmp_path, STRIDE)}:Stride"))


@pytest.mark.parametrize("rule", BROKEN)
def test_an_objective_that_breaks_a_rule_is_refused_by_its_name(rule, tmp_path):
    settings = phase(objective=f"{of_file(tmp_path, STRIDE, *BROKEN[rule])}:Stride")
    with pytest.raises(ConfigError, match=f"^stride: breaks the rule '{rule}': "):
        check_objective(settings)


def test_an_error_of_a_class_names_the_rule_that_met_it(tmp_path):
    edit = ("rows = batch.packed", "rows = batch.packd")
    settings = phase(objective=f"{of_file(tmp_path, STRIDE, edit)}:Stride")
    with pytest.raises(ConfigError, match=r"rule 'rows': .*AttributeError: .*packd"):
        check_objective(settings)


SMOOTHED, FOCAL, MOMENTUM, SPANS = map(page_code, ("Smoothed", "Focal", "Momentum", "PoissonSpans"))
LOSSES = {
    "passes": ("return plain + z_loss", "return plain / len(labels) + z_loss"),
    "finite": ("z_loss * logits.logsumexp(-1)", "z_loss * logits.sum(-1).fill_(float('inf'))"),
}
"""Edits of a loss, by the rule that is broken then."""


def test_a_loss_of_ones_own_keeps_the_rules(tmp_path):
    settings = phase(objective=f"{of_file(tmp_path, SMOOTHED)}:Smoothed", smoothing=0.2)
    check_objective(settings)
    assert settings.identity(3) | {"plugin": None} == {
        "name": "smoothed",
        "smoothing": 0.2,
        "z_loss": 1e-4,
        "mlm_probability": 0.4,
        "replacement": "mask",
        "mask_seed": 3,
        "plugin": None,
    }


def test_a_loss_weighted_by_predictability_keeps_the_rules(tmp_path):
    settings = phase(objective=f"{of_file(tmp_path, FOCAL)}:Focal", gamma=2.0)
    check_objective(settings)
    part = ObjectiveRules(settings).parts()[0]
    even = torch.zeros(1, 4)  # each of four tokens has a chance of 1/4
    loss = float(part.per_label(even, torch.tensor([2])))
    assert loss == pytest.approx((1 - 1 / 4) ** 2 * math.log(4))


def test_distillation_from_logits_keeps_the_rules(tmp_path):
    small_model().save_pretrained(tmp_path / "teacher")
    file = of_file(tmp_path, page_code("Taught"))
    settings = phase(objective=f"{file}:Taught", teacher=str(tmp_path / "teacher"))
    check_objective(settings)
    teacher = fetch_model(tmp_path / "teacher").identity
    assert settings.identity(3)["teacher"] == teacher
    # By all tokens of the teacher, logits that give its probabilities are the best ones.
    size = small_vocabulary().size
    part = ObjectiveRules(settings.model_copy(update={"most": size})).parts()[0]
    tokens, chances = torch.from_numpy(part.values).chunk(2, dim=1)
    logits = torch.zeros_like(chances).scatter_(1, tokens.long(), chances.log()).requires_grad_()
    given = map(torch.from_numpy, (part.labels, part.values))
    part.per_label(logits, *given).sum().backward()
    assert logits.grad.abs().max() < 1e-6
    first = part.part(0, 4)
    assert len(first.values) == len(first.labels) < len(part.labels)


def test_an_objective_that_draws_keeps_the_rules(tmp_path):
    check_objective(phase(objective=f"{of_file(tmp_path, SPANS)}:PoissonSpans"))


@pytest.mark.parametrize("rule", LOSSES)
def test_a_loss_that_breaks_a_rule_is_refused_by_its_name(rule, tmp_path):
    settings = phase(objective=f"{of_file(tmp_path, SMOOTHED, LOSSES[rule])}:Smoothed")
    with pytest.raises(ConfigError, match=f"^smoothed: breaks the rule '{rule}': "):
        check_objective(settings)


BROKEN_STEPS = {
    "updates": [("weight.grad is None", "weight.ndim == 1")],
    "rate": [('group["lr"] * average', "0.01 * average")],
    "pure": [("add_(weight.grad)", "add_(weight.grad * torch.rand(()))")],
    "moments": [("        return 1\n", "        return 2\n")],
    "resume": [
        ("(torch.optim.Optimizer):", "(torch.optim.Optimizer):\n    count = 0"),
        ("        for group in", "        self.count += 1\n        for group in"),
        ('group["lr"] * average', 'group["lr"] * average / self.count'),
    ],
    "skips": [(" or self.found_inf", "")],
    "determinants": [
        (
            "    def num_moments",
            "    def determinants(self):\n"
            "        return {'name': 'momentum'}\n\n"
            "    def num_moments",
        )
    ],
}  # fmt: skip


def test_an_optimizer_of_a_file_keeps_the_rules(tmp_path):
    check_optimizer(optimizer(name=f"{of_file(tmp_path, MOMENTUM)}:Momentum", momentum=0.8))


def test_the_optimizer_of_several_widths_keeps_the_rules():
    file = Path(__file__).parents[3] / "evidence/tuning/scaled.py"
    check_optimizer(optimizer(name=f"{file}:Scaled"))


@pytest.mark.parametrize("rule", BROKEN_STEPS)
def test_an_optimizer_that_breaks_a_rule_is_refused_by_its_name(rule, tmp_path):
    settings = optimizer(name=f"{of_file(tmp_path, MOMENTUM, *BROKEN_STEPS[rule])}:Momentum")
    with pytest.raises(ConfigError, match=f"^momentum: breaks the rule '{rule}': "):
        check_optimizer(settings)


def test_every_rule_has_a_plugin_that_breaks_it():
    assert {*BROKEN, *LOSSES} == {*ObjectiveRules.names()}
    assert {*BROKEN_STEPS} == {*OptimizerRules.names()}


def test_the_page_has_every_rule():
    section = PAGE.partition("## Rules")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    groups = ("objectives", "optimizers", "sources", "executors")
    assert named == [name for group in groups for name in RULES[group].names()]
