"""The real scheduler on a simulated cluster: its makespan, and that faults lose no job."""

import importlib
import random
import sys
from pathlib import Path

import pytest

import trivial_jobs

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
HOUR = 3600.0
RATE = 1e14


@pytest.fixture(scope="module")
def simulation():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("simulation")
    for name in ("simulation", "scheduling", "harness"):
        sys.modules.pop(name, None)


def item(name, needs=None, *, hours, slots=1):
    kind = "train" if slots > 1 else "finetune"
    return trivial_jobs.item(name, needs, kind=kind, cost=hours * HOUR * RATE * slots, slots=slots)


def study():
    """Twelve chains of three trainings on four devices; five fine-tunings after each training."""
    draw, items = random.Random(0), []  # noqa: S311 - made-up lengths
    for arm in range(12):
        needs = None
        for part in range(3):
            name = f"arm-{arm}-{part}"
            items.append(item(name, needs, hours=draw.uniform(1, 4), slots=4))
            items += [
                item(f"{name}-task-{task}", name, hours=draw.uniform(0.2, 1)) for task in range(5)
            ]
            needs = name
    return items


def run(simulation, items, *, num_nodes, seed=0, **faults):
    cluster = simulation.Cluster(num_nodes, node_slots=4, rate=RATE, **faults)
    parts = {each.id: 10 for each in items}
    simulated = simulation.SimulatedCluster(cluster, items, parts, seed=seed)
    return simulated, simulation.run_on(simulated)


def test_the_bounds_by_hand(simulation):
    # Two nodes of four devices. 4 + 1 hours after each other; 4 x 4 + 1 + 3 device-hours.
    items = [item("a", hours=4, slots=4), item("b", "a", hours=1), item("c", hours=3)]
    simulated, outcome = run(simulation, items, num_nodes=2, start_seconds=0.0)
    assert simulated.least_seconds() == (5 * HOUR, 20 * HOUR / 8)
    assert simulated.now() == 5 * HOUR
    assert outcome.num_executed == 3


@pytest.mark.parametrize("num_nodes", [4, 24])
@pytest.mark.parametrize("faults", [{}, {"failure_share": 0.01, "loss_seconds": 3 * HOUR}])
def test_the_makespan_is_within_five_percent_of_the_bound(simulation, num_nodes, faults):
    simulated, outcome = run(simulation, study(), num_nodes=num_nodes, **faults)
    path, share = simulated.least_seconds()
    assert (share > path) == (num_nodes == 4)  # there is too little work, or too few devices
    assert outcome.num_executed == len(study())
    assert max(path, share) <= simulated.now() <= 1.05 * max(path, share)


def test_faults_lose_no_job_and_none_runs_again_after_its_success(simulation):
    items = study()
    simulated, outcome = run(
        simulation, items, num_nodes=4, failure_share=0.05, loss_seconds=HOUR, repair_seconds=600
    )
    # The cluster refuses a job that has finished.
    assert simulated.finished == {each.id for each in items}
    assert (outcome.num_executed, outcome.failures, outcome.blocked) == (len(items), (), ())
    assert simulated.num_losses > 20
    assert simulated.tries.total() > len(items) + 20
    # An interrupted job goes on from what it has saved: it loses less than a part of its work.
    for each in items:
        repeats = simulated.tries[each.id] - 1
        assert simulated.lost_flops[each.id] <= repeats * each.cost / 10


def test_a_simulation_repeats_exactly(simulation):
    faults = {"num_nodes": 4, "failure_share": 0.05, "loss_seconds": HOUR}
    first, second, other = (run(simulation, study(), seed=seed, **faults)[0] for seed in (1, 1, 2))
    assert (first.now(), first.tries) == (second.now(), second.tries)
    assert first.now() != other.now()
