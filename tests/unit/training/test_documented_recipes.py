"""The recipes in the documentation are recipes."""

import re
from pathlib import Path

import pytest
import yaml

from biphasic.config import parse_config
from biphasic.training.recipe import Recipe
from biphasic.training.timeline import check_phases

PAGE = Path(__file__).parents[3] / "docs" / "adapt.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_documented_recipe(block):
    recipe = parse_config(Recipe, yaml.safe_load(block), where="docs/adapt.md")
    assert recipe.phases
    check_phases(recipe.placed_phases)


def test_there_are_some():
    assert len(BLOCKS) == 3
