"""Nodes of a cluster's block that the processes of one job are spread over."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

_VARIABLE = "BIPHASIC_NODES"


@dataclass(frozen=True)
class Nodes:
    """Nodes that a process group is spread over.

    Attributes:
        count: Their number.
        launch: Command that starts one process on each of them.
        folder: Folder on a file system that they share.
    """

    count: int = 1
    launch: tuple[str, ...] = ()
    folder: str | None = None

    @classmethod
    def from_environment(cls) -> Nodes:
        """Return the nodes of this block; this machine alone outside of blocks of several."""
        text = os.environ.get(_VARIABLE)
        return cls(**json.loads(text)) if text else cls()

    def environment(self) -> dict[str, str]:
        """Return the variable that passes them to a job."""
        return {} if self.count == 1 else {_VARIABLE: json.dumps(asdict(self))}
