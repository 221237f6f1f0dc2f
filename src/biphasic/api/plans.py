"""Plans of studies from Python: `plan`, `diff`, `schema`, `jobs` and `register`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.api.arguments import check_arguments
from biphasic.errors import ConfigError
from biphasic.files import expanded
from biphasic.store import DEFAULT_ROOT
from biphasic.study import EXAMPLE_TOKENS

if TYPE_CHECKING:
    from biphasic.api.results.lists import Findings
    from biphasic.api.results.plans import Registered, StudyJobs, StudyPlan


@check_arguments()
def plan(
    file: Path | str,
    *,
    root: Path | str = DEFAULT_ROOT,
    rate: float | None = None,
    example_tokens: int = EXAMPLE_TOKENS,
    overrides: Sequence[str] = (),
) -> StudyPlan:
    """Show what a study will train, share and skip, without running it.

    Args:
        file: Study file (YAML).
        root: Folder of studies and their shared store.
        rate: Sustained FLOP/s per device, to estimate device-hours. Default: this machine's,
            measured for a second.
        example_tokens: Assumed mean tokens per fine-tuning example.
        overrides: Override a setting, e.g. recipe.model=micro.

    Raises:
        ConfigError: The study file is invalid.
        DataError: Data are missing or damaged.

    Example:
        >>> from biphasic import plan
        >>> planned = plan("study.yaml", rate=1e12)
        >>> planned.frame.values.tolist(), planned.drawing()[:4]
        ([['mlm', '', 2, 2]], '<svg')
    """
    from biphasic.api.results.plans import StudyPlan
    from biphasic.study.plan.preview import preview_study
    from biphasic.study.plan.summary import summarise_plan
    from biphasic.study.sizing.estimate import plan_memory
    from biphasic.study.sizing.here import speed_here
    from biphasic.study.spec.load import load_study
    from biphasic.study.study import Study

    config = load_study(file, overrides)
    planned = preview_study(Study(config, expanded(root)))
    summary = summarise_plan(planned, example_tokens=example_tokens)
    jobs_here, advice = None, ""
    if rate is None:
        rate, jobs_here, advice = speed_here(config.recipe.precision)
    memory = plan_memory(planned)
    return StudyPlan(planned, summary, rate, example_tokens, memory, jobs_here, advice)


@check_arguments()
def diff(first: Path | str, second: Path | str, *, root: Path | str = DEFAULT_ROOT) -> Findings:
    """Show how the plans of two studies differ, and why.

    Args:
        first: Study file (YAML).
        second: Study file to compare with.
        root: Folder of studies and their shared store.

    Raises:
        ConfigError: A study file is invalid.

    Example:
        >>> from biphasic import diff
        >>> diff("study.yaml", "study.yaml").sentences[0]
        'both studies plan the same'
    """
    from biphasic.api.results.lists import Findings
    from biphasic.study.plan.diff import difference_lines
    from biphasic.study.plan.preview import preview_study
    from biphasic.study.spec.load import load_study
    from biphasic.study.study import Study

    one, other = (
        preview_study(Study(load_study(file), expanded(root))) for file in (first, second)
    )
    return Findings(tuple(difference_lines(one, other, str(first), str(second))))


def schema() -> dict[str, Any]:
    """Show the JSON schema of study files, for editors.

    Example:
        >>> from biphasic import schema
        >>> "arms" in schema()["properties"]
        True
    """
    from biphasic.study.spec.load import study_schema

    return study_schema()


@check_arguments()
def jobs(
    file: Path | str,
    *,
    root: Path | str = DEFAULT_ROOT,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> StudyJobs:
    """Save and list missing jobs, for an external scheduler.

    Builds the study's data first.

    Args:
        file: Study file (YAML).
        root: Folder of studies and their shared store.
        overrides: As in `plan`.
        quiet: Show results and errors only.

    Raises:
        ConfigError: The study file is invalid.
        DataError: Data are missing or damaged.
        LockedError: Another process is running this study.

    Example:
        >>> from biphasic import jobs
        >>> changes = ["name=later", "recipe.seeds.init_seed=9"]
        >>> jobs("study.yaml", overrides=changes).frame["kind"].tolist()
        ['train', 'finetune', 'report']
    """
    from biphasic.api.results.plans import StudyJobs
    from biphasic.execution.job import save_job
    from biphasic.progress import progress_console
    from biphasic.study.run.prepare import prepare_study
    from biphasic.study.run.report import ReportJob, write_study_report
    from biphasic.study.spec.load import load_study
    from biphasic.study.study import Study

    study = Study(load_study(file, overrides), expanded(root), file=Path(file))
    prepared = prepare_study(study, console=progress_console(quiet=quiet))
    with study.locked():
        study.save()
        write_study_report(prepared)  # 'study report' reads the expected results from it
    items, last = prepared.missing_work(), ReportJob.of(study)
    for job in (*(item.make() for item in items), *([last] if items else [])):
        save_job(job)
    return StudyJobs(study, tuple(items), last)


@check_arguments()
def register(
    file: Path | str,
    *,
    root: Path | str = DEFAULT_ROOT,
    spread: float | None = None,
    pilot: str | None = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> Registered:
    """Fix a study's questions, arms, tasks, grid and seeds under a hash, before its first score.

    Registers again, as a dated amendment, if the study has changed since.

    Args:
        file: Study file (YAML).
        root: Folder of studies and their shared store.
        spread: Assumed standard deviation of an arm's score over runs, in percentage points.
        pilot: Finished study whose spreads over runs are assumed, instead of --spread.
        overrides: As in `plan`.
        quiet: Show results and errors only.

    Raises:
        ConfigError: The study file is invalid or has no questions, or the study has scores and was
            not registered before them.

    Example:
        >>> from biphasic import register
        >>> len(register("registered.yaml", spread=0.5).records)
        1
    """
    from biphasic.api.results.plans import Registered
    from biphasic.progress import progress_console
    from biphasic.study.find import find_study
    from biphasic.study.run.register import register_study
    from biphasic.study.spec.load import load_study
    from biphasic.study.study import Study

    if spread is not None and pilot is not None:
        raise ConfigError("--spread, --pilot: give one of them")
    config = load_study(file, overrides)
    records = register_study(
        Study(config, expanded(root), file=Path(file)),
        console=progress_console(quiet=quiet),
        spread=spread,
        pilot=None if pilot is None else find_study(pilot, expanded(root))[0],
    )
    return Registered(config.title, records)
