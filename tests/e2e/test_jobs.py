"""Jobs one by one, as a scheduler of one's own does them."""

import pytest

from mini_study import STUDY, copy_root, results, write_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered", "unprobed")]

ARMS = [arm for arm in STUDY["arms"] if arm["name"] in {"clm", "clm-50-mlm-50"}]
TASKS = [task for task in STUDY["tasks"] if task["name"] == "first-word"]


def test_jobs_that_are_done_one_by_one_finish_the_study(finished, tmp_path, cli):
    root = copy_root(finished, tmp_path / "root", data_only=True)
    study = write_study(tmp_path, arms=ARMS, tasks=TASKS)
    code, out, err = cli("study", "jobs", study, "--root", root)
    assert code == 0, err
    jobs = [line.split("\t") for line in out.splitlines()]
    assert [(kind, slots) for _, kind, slots, _, _ in jobs] == [
        ("train", "1"), ("train", "1"), ("train", "1"), ("finetune", "1"), ("finetune", "1"),
        ("report", "1"),
    ]  # fmt: skip
    *ids, report = [identity for identity, *_ in jobs]
    needs = {identity: other for identity, _, _, other, _ in jobs}
    trunk, *branches = ids[:3]
    assert needs[trunk] == "-"
    assert [needs[branch] for branch in branches] == [trunk, trunk]
    assert all(needs[tuned] in branches for tuned in ids[3:])

    # Too early: it says what must be done first.
    code, _, err = cli("job", "run", branches[0], "--root", root)
    assert code == 1
    assert f"biphasic job run {trunk}" in err
    # As pods do it: a line of a level's list each.
    lists = [tmp_path / f"level-{number}.txt" for number in range(3)]
    for path, level in zip(lists, ([trunk], branches, ids[3:]), strict=True):
        path.write_text("".join(f"{identity}\n" for identity in level))
        for index in range(len(level)):
            code, out, err = cli(
                "job", "run", "--list", path, "--index", f"{index}", "--root", root
            )
            assert (code, out.startswith("done: ")) == (0, True), err
    code, _, err = cli("job", "run", "--list", lists[0], "--index", "1", "--root", root)
    assert (code, err) == (2, f"error: --index: give a line of {lists[0]}, from 0 to 0\n")
    code, _, err = cli("job", "run", trunk, "--list", lists[0], "--root", root)
    assert (code, "give a job identity, or --list FILE" in err) == (2, True)
    code, out, _ = cli("job", "run", trunk, "--root", root)
    assert (code, out.startswith("already done: ")) == (0, True)
    code, out, _ = cli("job", "show", trunk, "--root", root)
    assert (code, f'"id": "{trunk}"' in out) == (0, True)
    code, _, err = cli("job", "run", "no-such-job", "--root", root)
    assert (code, "no such job" in err) == (2, True)

    # The report was written while all was missing; the last job writes it anew.
    assert "finished" not in results(root).decode()
    code, out, err = cli("job", "run", report, "--root", root)
    assert (code, out) == (0, "done: report of mini\n"), err
    tuned = [row for row in results(root).decode().splitlines() if ",first-word," in row]
    assert [row.count("finished") for row in tuned] == [1] * (4 + 2)  # a floor and a reference
    code, out, _ = cli("study", "run", study, "--root", root)
    assert (code, "all finished; nothing to do" in out) == (0, True)
    ours = {line for line in results(root).decode().splitlines() if ",first-word," in line}
    assert len(ours) == 2 * 2 + 2
    assert ours <= set(results(finished / "root").decode().splitlines())
