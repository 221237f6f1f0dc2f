"""The rules of kinds of tasks: ours keep them, and each is broken by a kind that it refuses."""

import re
from pathlib import Path

import pytest

from biphasic.errors import ConfigError
from biphasic.testing import KindRules, check_kind, check_named
from custom_tasks import write_csv
from plugin_files import forget_plugins

TUTORIAL = (Path(__file__).parents[3] / "docs/tutorials/new-task-kind.md").read_text("utf-8")
STARS = re.findall(r"%%writefile stars.py\n(.*?)```", TUTORIAL, re.S)[0]
START = """
import itertools
import random
import numpy as np
from dataclasses import replace
from biphasic.facts import KindFacts, metric_facts
from biphasic.tasks.kinds.classification import Classification

class Encoded(Classification.encoded):
    pass

class Broken(Classification):
    name = "broken"
    facts = KindFacts("broken", (metric_facts("accuracy"),))
    encoded = Encoded
"""
BROKEN = {
    "parse": """
    def parse(self, row, *, labels, template):
        parsed = super().parse(row, labels=labels, template=template)
        return replace(parsed, answer=next(drawn) // 5 % 2)

drawn = itertools.count()
""",
    "encode": """
    def encode(self, task, tokenizer, *, protocol):
        encoded = super().encode(task, tokenizer, protocol=protocol)
        encoded.num_outputs += next(drawn)
        return encoded

drawn = iter(range(99))
""",
    "loss": """
Encoded.mean_loss = lambda self, outputs, expected: outputs.mean(dim=0)
""",
    "scores": """
    facts = KindFacts("broken", (metric_facts("f1"),))
""",
    "pure": """
first = Classification.encoded.score
def score(self, ids, outputs, expected):
    scored = first(self, ids, outputs, expected)
    return replace(scored, scores=scored.scores + random.random())
Encoded.score = score
""",
    "batches": """
def evaluate(self, encoder, head):
    scores = Classification.encoded.evaluate(self, encoder, head)
    sizes = [len(indices) for indices, *_ in encoder.batches(self.sequences["test"])]
    return {name: replace(one, scores=one.scores + sizes[0]) for name, one in scores.items()}
Encoded.evaluate = evaluate
""",
}


@pytest.fixture
def texts(tmp_path):
    forget_plugins()
    folder = tmp_path / "texts"
    folder.mkdir()
    for split, number in (("train", 12), ("dev", 6), ("test", 10)):
        rows = [[f"the {pet} sat on mat {n} of {split}", pet] for n in range(number // 2)
                for pet in ("cat", "dog")]  # fmt: skip
        write_csv(folder / f"{split}.csv", ["text", "label"], rows)
    yield folder
    forget_plugins()


@pytest.mark.parametrize("kind", ["sc", "ml"])
def test_ours_keep_the_rules(texts, kind):
    check_kind(kind, texts)


def test_the_tutorial_s_kind_keeps_the_rules(texts, tmp_path, cli):
    path = tmp_path / "stars.py"
    path.write_text(STARS)
    [line] = check_named(str(path), {}, texts)
    assert re.fullmatch(r"stars\.py:_?\w+ \([0-9a-f]{12}\): keeps all 6 rules of task_kinds", line)
    assert cli("plugin", "check", f"{path}:Stars", "--task", texts)[:2] == (0, f"{line}\n")
    code, _, error = cli("plugin", "check", path)
    assert (code, "a kind of task is checked with --task FOLDER" in error) == (2, True)


@pytest.mark.parametrize("rule", sorted(BROKEN))
def test_a_kind_that_breaks_a_rule_is_refused_by_its_name(texts, tmp_path, rule):
    path = tmp_path / "broken.py"
    path.write_text(START + BROKEN[rule])
    with pytest.raises(ConfigError, match=f"breaks the rule '{rule}'"):
        list(check_named(f"{path}:Broken", {}, texts))


def test_every_rule_has_a_kind_that_breaks_it():
    assert {*BROKEN} == {*KindRules.names()}
