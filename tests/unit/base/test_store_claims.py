"""Work in a store and cleaning it keep each other out, whichever comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from biphasic import store_claims
from biphasic.errors import LockedError, TakenError
from biphasic.process import this_process
from biphasic.store_claims import (
    claim_cleaning,
    claim_work,
    refuse_while_cleaning,
    running_work,
    wait_for_work,
)


def test_work_is_claimed_by_name(tmp_path):
    with claim_work(tmp_path, "a", doing="training a"):
        with claim_work(tmp_path, "b", doing="training b"):
            assert sorted(running_work(tmp_path)) == ["a", "b"]
        with pytest.raises(TakenError, match="training a"):
            claim_work(tmp_path, "a", doing="again").__enter__()
        assert {name: str(who) for name, who in running_work(tmp_path).items()}.keys() == {"a"}
    assert running_work(tmp_path) == {}


@pytest.mark.parametrize("claim", [claim_work, wait_for_work])
def test_nobody_else_begins_to_work_in_a_store_that_is_cleaned(tmp_path, claim, monkeypatch):
    with claim_cleaning(tmp_path):
        with claim(tmp_path, "a", doing="planning"):
            pass  # who cleans may look at what studies need, which can make their tasks
        here = replace(this_process(), pid=1)
        monkeypatch.setattr(store_claims, "this_process", lambda: here)
        with pytest.raises(LockedError, match="being cleaned") as caught:
            claim(tmp_path, "a", doing="training a").__enter__()
        assert "study clean" in str(caught.value)
        assert running_work(tmp_path) == {}  # what was refused holds nothing
        with pytest.raises(TakenError, match="cleaning this store"):
            claim_cleaning(tmp_path).__enter__()
    refuse_while_cleaning(tmp_path)
    with claim(tmp_path, "a", doing="training a"):
        assert list(running_work(tmp_path)) == ["a"]


def test_who_cleans_sees_who_began_before(tmp_path):
    with claim_work(tmp_path, "a", doing="training a"), claim_cleaning(tmp_path):
        assert running_work(tmp_path)["a"].doing == "training a"
