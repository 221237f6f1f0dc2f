"""The figure of scores by the number of training examples of fine-tuning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from biphasic.analysis.figures.chart import Axis, Chart, Panel, Point, Series, Skipped, ticks_at
from biphasic.analysis.figures.choose import interval_note
from biphasic.analysis.scores.table import DatasetInfo, ModelInfo, Scores
from biphasic.analysis.text import metric_name
from biphasic.palette import distinct_styles

NAME, TITLE = "train-examples", "Scores by training examples"


def scores_by_train_examples(scores: Scores) -> Chart | Skipped:
    """Draw scores by the number of training examples that a fine-tuning reads."""
    models = [model for model in scores.models if model.is_final]
    styles = distinct_styles([model.name for model in models])
    panels = []
    for name, datasets in tasks_by_examples(scores).items():
        series = [
            Series(scores.labels[model.name], styles[model.name], points)
            for model in models
            if (points := tuple(_points(scores, model, datasets)))
        ]
        if series:
            unit = f"test {metric_name(datasets[0].metric)}, %"
            panels.append(Panel(name, name, unit, tuple(series)))
    if not panels:
        reason = "needs scores of a task with two numbers of training examples or more"
        return Skipped(NAME, TITLE, reason)
    places = [point.x for panel in panels for point in panel.points]
    axis = Axis("training examples", "log", ticks_at(places, lambda number: f"{number:,.0f}"))
    note = interval_note(scores)
    caption = f"{TITLE}. A smaller set is part of each larger one of its seed. {note}"
    return Chart(NAME, TITLE, caption, axis, tuple(panels))


def tasks_by_examples(scores: Scores) -> dict[str, list[DatasetInfo]]:
    """Return the datasets of each task that is read with several numbers of training examples."""
    tasks: dict[str, list[DatasetInfo]] = defaultdict(list)
    for dataset in scores.datasets:
        # As the setting `train_examples` of a study's task names them.
        name, _, number = dataset.name.rpartition("-")
        if name and number == str(dataset.num_train):
            tasks[name].append(dataset)
    return {name: datasets for name, datasets in tasks.items() if len(datasets) > 1}


def _points(scores: Scores, model: ModelInfo, datasets: Sequence[DatasetInfo]) -> Iterator[Point]:
    for dataset in datasets:
        if (estimate := scores.get(model.name, dataset.name).estimate) is not None:
            name = scores.written_names[model.name]
            yield Point(dataset.num_train, estimate.mean, *estimate.ends, name)
