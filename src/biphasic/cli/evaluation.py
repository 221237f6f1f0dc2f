"""Printing of evaluations."""

from __future__ import annotations

from biphasic.cli.options import echo, print_table
from biphasic.evaluation.result import Evaluation


def print_evaluation(evaluation: Evaluation) -> bool:
    """Print one task's score and its caveats; return whether there is a score."""
    for line in evaluation.sentences():
        echo(line)
    for note in evaluation.notes:
        echo(note, err=True)
    table = evaluation.type_table()
    if table is not None:
        print_table(table)
    return evaluation.estimate is not None
