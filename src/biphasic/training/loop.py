"""The training loop: from one state of a recipe to a later one.

A loss is a spike if it lies more than `DEVIATIONS` standard deviations above the median of the last
`WINDOW` losses of the same phase and objective. The deviation is estimated robustly, as 1.4826
times the median distance from the median, so one outlier does not hide the next. Window and
threshold are those of OLMo-core (`SkipStepOptimizer`), which takes mean and standard deviation and
skips the update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor

from biphasic.distributed import ALONE, Activity, ProcessGroup
from biphasic.errors import ConfigError, DivergedError, StoppedError
from biphasic.model.cpu.kernels import cpu_kernels
from biphasic.model.head import has_head
from biphasic.store import is_complete, state_folder
from biphasic.training.compute import steps_ahead
from biphasic.training.fault import bring_checkpoint, save_fault
from biphasic.training.heldout import HeldoutLoss, HeldoutPairs, own_measures
from biphasic.training.lineage import Lineage, TrainingData
from biphasic.training.memory import release_excess
from biphasic.training.recipe import Recipe
from biphasic.training.run import Run, RunOptions, resume_or_start
from biphasic.training.state import Checkpoints
from biphasic.training.step.divided import DividedModel
from biphasic.training.step.input import Pass, StepInput, StepInputs, pass_loss
from biphasic.training.step.pending import PendingSteps, StepReport
from biphasic.training.step.weights import MasterWeights
from biphasic.training.timeline import PlacedPhase

WINDOW = 128  # losses that one is compared with
LEAST = 64  # losses before the first comparison
DEVIATIONS = 6.0  # standard deviations above the median
# Standard deviation of a normal distribution over its median distance from the median.
_TO_DEVIATION = 1.4826


class SpikeWatch:
    """The last losses of each phase and objective."""

    def __init__(self, recipe: Recipe, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        """Continue after lines of metrics."""
        self._recipe = recipe
        self._losses: dict[tuple[int, str], deque[float]] = {}
        self._is_above = False
        for line in lines:
            if "loss" in line:
                self.see(line["step"], line["loss"])

    def see(self, number: int, loss: float) -> str:
        """Take a step's loss; return a warning at the first step of a spike, else ''."""
        step = number - 1  # counted from 0, like rows and schedules
        placed = self._recipe.phase_at(step)
        key = placed.index, placed.objective(step).short_name
        losses = self._losses.setdefault(key, deque(maxlen=WINDOW))
        was_above, self._is_above, text = self._is_above, False, ""
        if len(losses) >= LEAST:
            middle = median(losses)
            deviation = _TO_DEVIATION * median(abs(each - middle) for each in losses)
            self._is_above = deviation > 0 and loss > middle + DEVIATIONS * deviation
            if self._is_above and not was_above:
                text = (
                    f"step {step}: loss spike, {loss:.3f} is "
                    f"{(loss - middle) / deviation:.0f} standard deviations above the median "
                    f"{middle:.3f} of the last {len(losses)} losses"
                )
        losses.append(loss)
        return text


def train_segment(
    lineage: Lineage,
    data: TrainingData,
    store: Path,
    *,
    start: int,
    end: int,
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    ranks: ProcessGroup = ALONE,
) -> Path:
    """Train from the state after `start` updates to the one after `end`; return its folder."""
    # `store` is a folder whose `states/` holds states by identity. `start` is 0, or a step whose
    # state is there; `end` is a later step, or 0 for the untrained model. LoRA neither begins nor
    # ends between them.
    # An interrupted segment resumes from its latest checkpoint. On a CPU the resulting weights are
    # bitwise the same as without the interruption. They are the same for any number of ranks,
    # except for the rounding of sums taken in another order.
    # All ranks, as many as `options.compute.processes`, call this with the same arguments, except
    # `tensorboard`, `report`, `describe`, `warn` and `should_stop`, which only the first rank has.
    recipe, compute = lineage.recipe, options.compute
    compute.check_rows(recipe.placed_phases)
    if compute.processes != ranks.dp_world_size:
        raise ConfigError(
            f"compute.processes is {compute.processes}, but this process is "
            f"one of {ranks.dp_world_size}; start them with biphasic.execution.ranks"
        )
    if any(start < border < end for border in recipe.lora_borders):
        raise ValueError(f"LoRA begins or ends between the steps {start} and {end}")
    target = state_folder(store, lineage.identities[end])
    progress = Checkpoints.of(store, lineage.identities[end], start=start)
    # One rank looks, so that all return or all train: they may not see a new folder at once.
    if ranks.from_first(is_complete(target)):
        if ranks.is_first:
            progress.clear()
        return target
    if ranks.is_first:
        progress.remove_partials()
        bring_checkpoint(lineage, store, progress, start=start, end=end)
    run = resume_or_start(
        lineage, data, store, progress, options, start=start, end=end, ranks=ranks
    )
    if options.judge is not None and not has_head(run.model):
        raise ConfigError(
            "minimal_pairs: the model was saved without a language-model head, so it gives "
            "sentences no probability; omit them"
        )
    if run.change:
        options.warn_of([f"{run.change}; from here on, numbers may differ"])
    watch = partial(
        run.watch,
        HeldoutLoss(data, max_seqlen=recipe.max_seqlen, rows_per_batch=recipe.rows_per_step),
        HeldoutPairs(recipe, data, compute),
        own_measures(lineage.recipe, end=end),
        options,
    )
    with closing(run.log):  # after an error, too: it writes events in a thread of its own
        with background_writer(waits_after_errors=ranks.is_alone) as writer:
            fault = _train_until(end, run, progress, writer, options, watch)
            if fault is not None:
                raise _stopped_at(run, fault, progress, writer, start=start)
        watch()
        if options.describe:
            options.describe("saving the state")
        run.save(target)
    if ranks.is_first:
        progress.clear()
    ranks.barrier()  # no rank reports the state before it exists
    return target


def _train_until(  # noqa: PLR0917
    end: int,
    run: Run,
    progress: Checkpoints,
    writer: BackgroundWriter,
    options: RunOptions,
    watch: Callable[[], None],
) -> StepReport | None:
    """Run the updates up to a step; return the first one that is not finite, which ends the run."""
    recipe, ranks, device = run.lineage.recipe, run.ranks, run.model.device
    pending = PendingSteps(read_back_every=options.compute.reads_back_every(device))
    spikes = SpikeWatch(recipe, run.log.read())
    phase: PlacedPhase | None = None
    ahead = steps_ahead(device)
    with prefetched(_inputs(run).of, range(run.step, end), ahead=ahead) as inputs:
        while run.step < end:
            if phase is None or run.step == phase.end:
                phase = recipe.phase_at(run.step)
                run.enter(phase)
            pending.begin()
            ranks.heartbeat.at(Activity.READING, run.step)
            given = next(inputs)
            ranks.barrier()  # one that hangs while it reads is seen here, and not in a layer
            if run.step in recipe.skip_steps or given.num_supervised == 0:
                options.warn_of(_why_without_update(run, phase, given))
                # Its rows count as read, so later steps read the same rows as without the skip.
                given = replace(given, num_supervised=0, flops=0)
            else:
                pending.add(*_update(run, phase, given))
            run.position = run.position.after(
                given,
                phase=phase.index,
                objective=phase.phase.short_name,
                corpus=phase.phase.corpus and run.lineage.fingerprint.hash_of(phase.corpus),
            )
            release_excess()
            writer.check()
            stops = ranks.any_says(options.should_stop is not None and options.should_stop())
            watches = _is_due(run.step, every=options.heldout_every)
            saves = _is_due(run.step, every=options.checkpoint_every)
            # To read losses back waits for the device, so it is left until somebody needs them.
            if not (watches or saves or stops or pending.are_due or run.step in {phase.end, end}):
                continue
            ranks.heartbeat.at(Activity.DEVICE)
            done = pending.read_back()
            fault = _record(run, done)
            if fault is not None:
                return fault
            options.warn_of(filter(None, (spikes.see(step.step, step.loss) for step in done)))
            if watches and run.step < end:
                watch()
            if (saves or stops) and run.step < end:
                _begin_checkpoint(run, progress, writer)
            if options.report and ranks.is_first:
                for step in done:
                    options.report(step)
            if stops and run.step < end:
                writer.wait()
                run.log.close()
                raise StoppedError(f"stopped after {run.step} steps; run again to resume")
    return None


def _is_due(step: int, *, every: int) -> bool:
    return every > 0 and step % every == 0


def _why_without_update(run: Run, phase: PlacedPhase, given: StepInput) -> Iterator[str]:
    """Yield a line on a step without labels; who skips a step knows why."""
    if run.step not in run.lineage.recipe.skip_steps:
        yield (
            f"step {run.step} makes no update: {phase.phase.short_name} got no label from its "
            f"{given.batch.packed.num_tokens:,} tokens; use larger batches or a higher masking rate"
        )


def _update(run: Run, phase: PlacedPhase, given: StepInput) -> tuple[StepReport, Tensor, Tensor]:
    """Run one update without waiting for the device; return it with its loss and gradient norm."""
    rate = phase.learning_rate(run.step)
    report = StepReport(
        before=run.position,
        phase=phase.index,
        objective=phase.phase.short_name,
        learning_rate=rate,
        tokens=given.batch.packed.num_tokens,
        supervised_tokens=given.num_supervised,
    )
    loss = _backward(run, given)
    norm = run.optimizer.update(rate, loss=loss)
    return report, loss, norm


def _record(run: Run, steps: Sequence[StepReport]) -> StepReport | None:
    """Record the updates before the first one that is not finite, and return this one, if any."""
    fault = next((step for step in steps if step.fault is not None), None)
    # Ranks that end at different steps would wait for each other in the next sum for ever.
    run.ranks.require_same(
        -1 if fault is None else fault.before.step,
        what="the first steps with a loss or gradient that is not finite",
    )
    for step in takewhile(lambda step: step is not fault, steps):
        run.seconds += step.seconds
        run.log.write(step.line)
    return fault


def _backward(run: Run, given: StepInput) -> Tensor:
    """Accumulate the gradients of the mean loss over all labels of all ranks; return that loss."""
    compute_loss = run.divided or partial(pass_loss, run.model)
    # Also in the backward pass: it may recompute activations.
    with cpu_kernels(run.compute.uses_cpu_kernels):
        if given.is_coupled:
            return coupled_backward(
                given,
                compute_loss,
                run.optimizer.weights,
                device=run.model.device,
                ranks=run.ranks,
                divided=run.divided,
            )
        total = torch.zeros((), device=run.model.device)
        for rows in given.passes:
            run.ranks.heartbeat.at(Activity.COMPUTING)
            if run.divided is not None:
                run.divided.is_last_pass(rows is given.passes[-1])
            # By the labels of all passes and ranks: a mean of means would weigh labels of passes
            # with few of them more, and depend on the number of passes.
            loss = compute_loss(rows.to(run.model.device)) / given.normaliser
            loss.backward()
            run.optimizer.weights.gather_gradients()
            total += loss.detach()
    run.ranks.sum_(total)
    return total


def _begin_checkpoint(run: Run, progress: Checkpoints, writer: BackgroundWriter) -> None:
    write = run.checkpoint(progress.path(run.step))

    def write_and_drop() -> None:
        write()
        if run.ranks.is_first:
            progress.drop_old()

    writer.begin(write_and_drop)


def _stopped_at(
    run: Run, fault: StepReport, progress: Checkpoints, writer: BackgroundWriter, *, start: int
) -> DivergedError:
    """Save the weights before an update that is not finite, and what reproduces the update."""
    run.position = fault.before
    if run.step > start:  # else a state, or the initial model
        _begin_checkpoint(run, progress, writer)
        writer.wait()
    given = _inputs(run).of(run.step)
    loss = _backward(run, given)  # once more, for the norms of the gradients
    error = save_fault(run, fault, given, loss, checkpoint=progress.path(run.step), start=start)
    run.log.close()
    run.ranks.barrier()  # no rank ends the others before the first has written
    return error


def _inputs(run: Run) -> StepInputs:
    return StepInputs(run.lineage.recipe, run.data, run.model, compute=run.compute, ranks=run.ranks)


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class BackgroundWriter:
    """Runs one write at a time in a thread."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._pending: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Start a write; wait first for the previous one."""
        self.wait()
        self._pending = self._executor.submit(write)

    def check(self) -> None:
        """Raise what the last write raised, without waiting for it."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the last write."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


@contextmanager
def background_writer(*, waits_after_errors: bool) -> Iterator[BackgroundWriter]:
    """Yield a writer; when the block ends, its last write has ended too."""
    # Without `waits_after_errors`, a block that fails does not wait: the other ranks, with which a
    # checkpoint is written, may be lost.
    executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    writer = BackgroundWriter(executor)
    has_ended = False
    try:
        yield writer
        writer.wait()
        has_ended = True
    finally:
        executor.shutdown(wait=has_ended or waits_after_errors)


@contextmanager
def prefetched(
    produce: Callable[[ItemT], ResultT], items: Iterable[ItemT], *, ahead: int
) -> Iterator[Iterator[ResultT]]:
    """Yield `produce(item)` for each item, in order, prepared by one thread."""
    # An error is raised unchanged at its item's turn. The thread has always ended when the block is
    # left. `ahead` items are prepared after the current one; with 0, each is prepared on demand,
    # without a thread. `produce` is never called by two threads at once.
    if ahead == 0:
        yield map(produce, items)
        return
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="biphasic-prefetch")
    try:
        yield _in_order(executor, produce, items, ahead)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _in_order(
    executor: ThreadPoolExecutor,
    produce: Callable[[ItemT], ResultT],
    items: Iterable[ItemT],
    ahead: int,
) -> Iterator[ResultT]:
    waiting: deque[Future[ResultT]] = deque()
    for item in items:
        waiting.append(executor.submit(produce, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def coupled_backward(
    given: StepInput,
    compute: Callable[[Pass], Tensor],
    weights: MasterWeights,
    *,
    device: torch.device,
    ranks: ProcessGroup,
    divided: DividedModel | None,
) -> Tensor:
    """Accumulate the gradients of a loss that couples all texts of a step; return the mean loss.

    Every pass is read first without storing activations, for the vectors. The loss gives the
    gradient of each vector. Then each pass is read again, and continues the gradients of its
    vectors. Memory is that of one pass. Without dropout, both readings give the same vectors.

    Reference: Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited
    setup", arXiv:2101.06983, section 3.
    """
    passes, loss = given.passes, given.passes[0].loss
    assert loss is not None  # noqa: S101 - the caller has asked
    is_one = len(passes) == 1  # then its activations are stored at once
    # Activations of all passes at once are what passes avoid; a second reading costs time alone.
    outputs = []
    with torch.set_grad_enabled(is_one):
        for rows in passes:
            ranks.heartbeat.at(Activity.COMPUTING)
            outputs.append(compute(rows.to(device)))
    if divided is not None and not is_one:
        divided.settle()
    vectors = outputs[0].new_zeros(given.num_supervised, outputs[0].shape[1])
    for rows, output in zip(passes, outputs, strict=True):
        vectors[rows.labels.to(device)] = output.detach()
    ranks.sum_(vectors)  # those of other ranks are zero here
    vectors.requires_grad_()
    mean = loss.summed(vectors, torch.arange(len(vectors), device=device)) / given.normaliser
    (gradient,) = torch.autograd.grad(mean, vectors)
    for rows in passes:
        ranks.heartbeat.at(Activity.COMPUTING)
        if divided is not None:
            divided.is_last_pass(rows is passes[-1])
        output = outputs[0] if is_one else compute(rows.to(device))
        output.backward(gradient[rows.labels.to(device)])
        weights.gather_gradients()
    return mean.detach()
