"""Refuses plugins that declare a version and do not give its golden output."""

from __future__ import annotations

from biphasic.config import Config
from biphasic.errors import ConfigError
from biphasic.plugins import settings_of_plugins


def check_versions(*settings: Config) -> None:
    """Check the plugins that settings name, before anything is trained with them."""
    for each, plugin in settings_of_plugins(settings):
        if not plugin.version:
            continue
        # Imported here: most settings name no such plugin, and the rules need torch.
        from biphasic.conformance import objectives, optimizers  # noqa: PLC0415
        from biphasic.objectives.objective import ObjectiveConfig  # noqa: PLC0415

        rules = objectives if isinstance(each, ObjectiveConfig) else optimizers
        for problem in rules.golden(rules.Case(each)):  # type: ignore[arg-type]
            raise ConfigError(problem, about=plugin.origin)
