"""The job that tokenises a corpus; the identities of a study's states depend on its result."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from biphasic.data.building.blend import BuildProgress
from biphasic.data.building.build import is_built
from biphasic.data.building.config import CorpusConfig
from biphasic.errors import StoppedError
from biphasic.execution.job import Job, Progress, Report, ShouldStop, never
from biphasic.study.inputs.corpus import build_missing_corpus


class CorpusJob(Job):
    """Tokenise a corpus of a study."""

    kind: Literal["tokenise"] = "tokenise"
    id: str  # `data-` and the name of the folder.
    folder: Path  # Output folder.
    corpus: CorpusConfig  # Settings of the corpus.

    @classmethod
    def of(cls, corpus: CorpusConfig, folder: Path, store: Path) -> CorpusJob:
        """Return the job that builds a corpus in its folder from `locate_corpus`."""
        return cls(
            id=f"data-{folder.name}", label="the corpus", store=store, folder=folder, corpus=corpus
        )

    def outputs(self) -> list[Path]:
        """Return the folder that it writes."""
        return [self.folder]

    def is_done(self) -> bool:
        """Return whether the corpus is built."""
        return is_built(self.folder)

    def run(self, report: Report, *, should_stop: ShouldStop = never) -> None:
        """Build the corpus, or wait for the process that builds it."""

        def forward(progress: BuildProgress) -> None:
            total = progress.total_tokens or progress.tokens
            report(Progress(progress.tokens, total, progress.rates()))
            if should_stop():
                raise StoppedError("stopped; finished shards are kept")

        # It prints nothing: a job has a progress bar.
        build_missing_corpus(
            self.corpus, self.folder, self.store, say=lambda _: None, progress=forward
        )
