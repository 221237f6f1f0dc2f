"""Task files from Python: `task.show`."""

from __future__ import annotations

from biphasic.api.verb import Function, Verb, option


class Show(Verb):
    """Show the task file of a published dataset, to copy and change.

    Raises:
        DataError: There is no such dataset.

    Example:
        >>> from biphasic import task
        >>> task.show("sst2").splitlines()[0]
        'kind: sc'
    """

    name: str = option(metavar="NAME")
    """Published dataset, such as sst2."""

    def __call__(self) -> str:
        from biphasic.tasks.hub_tasks import published_text

        return published_text(self.name)


show = Function(Show)
