"""Factors from names, as the reference study gives them."""

import dataclasses

import pytest

from biphasic.analysis.scores.layout import model_from_name
from biphasic.analysis.scores.source import paper_scores


def test_names_of_the_paper_s_models_tell_all_their_factors():
    for model in paper_scores().distinct:
        found = model_from_name(model.name)
        read = dataclasses.replace(
            found, group=model.group, identity=model.identity, label=model.label
        )
        assert read == model


def test_an_owner_is_no_part_of_the_name():
    found = model_from_name("owner/610m-clm-10k-mlm40-42k")
    assert found.name == "owner/610m-clm-10k-mlm40-42k"
    assert (found.size, found.objective, found.mask_rate) == ("610M", "CLM+MLM", 0.4)
    assert (found.clm_steps, found.mlm_steps, found.total_steps) == (10_000, 32_000, 42_000)


def test_a_phase_without_steps_is_no_objective():
    found = model_from_name("610m-clm-0k-mlm40-10k")
    assert (found.objective, found.clm_steps, found.mlm_steps) == ("MLM", 0, 10_000)


@pytest.mark.parametrize(
    "name",
    ["roberta-base", "610m", "610m-mlm-42k", "610m-clm40-42k", "610m-clm-42k-mlm40-10k", "",
     "610m-clm-42k-best", "610m-clm-42k-99000"],
)  # fmt: skip
def test_other_names_tell_nothing(name):
    found = model_from_name(name)
    assert (found.name, found.size, found.objective, found.total_steps) == (name, "", "", 0)
