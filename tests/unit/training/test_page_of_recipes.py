"""The page of recipes says what the records that read recipes say; documented recipes are valid."""

import re
from pathlib import Path

import pytest
import yaml

from biphasic.config import parse_config
from biphasic.study.settings.study import StudyConfig
from biphasic.training.recipe import Recipe
from record_recipes import PAGE, page, unit_of

ADAPTING = (Path(__file__).parents[3] / "docs" / "adapt.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    message = "write it anew: .venv/bin/python tests/record_recipes.py"
    assert PAGE.read_text(encoding="utf-8") == page(), message


def test_its_example_is_a_recipe():
    example = PAGE.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]
    assert parse_config(Recipe, yaml.safe_load(example), where="the page").total_steps == 800


def test_a_number_without_a_unit_is_noticed():
    with pytest.raises(KeyError):
        unit_of("new_key", {"type": "integer"})


def test_recipes_of_adaptation_are_recipes():
    blocks = re.findall(r"```yaml\n(.*?)```", ADAPTING, re.DOTALL)
    assert len(blocks) == 5
    for block in map(yaml.safe_load, blocks):
        if "arms" in block:
            assert parse_config(StudyConfig, block, where="docs/adapt.md").arms
            continue
        recipe = parse_config(Recipe, block, where="docs/adapt.md")
        assert recipe.phases
        recipe.check()
