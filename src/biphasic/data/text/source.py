"""The interface of text sources of a corpus."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import PositiveFloat

from biphasic.config import Config
from biphasic.data.text.files import SourceDocument, with_contents
from biphasic.errors import ConfigError
from biphasic.files import expanded
from biphasic.plugins import Plugin, short_name

__all__ = ["SourceContext", "SourceDocument", "TextSource"]


@dataclass(frozen=True)
class SourceContext:
    """Settings of a corpus that all of its sources may use.

    Attributes:
        libraries: For the built-in documentation: libraries to read; None for all.
        copies: Folder of local copies of hub datasets, as `owner/name/`.
    """

    libraries: Collection[str] | None = None
    copies: Path | None = None


class TextSource(Config):
    """A text source of a corpus; those of ours and plugins alike."""

    plugin: ClassVar[Plugin | None] = None  # set by biphasic; None for our own
    source: str
    """Its name, or what names a plugin."""
    share: PositiveFloat | None = None
    """Share of the corpus's tokens, in any unit; set it for all sources or none."""
    license: str = ""
    """License of documents that do not state their own; only recorded."""

    @property
    def short_name(self) -> str:
        """Its name in counts and in ids of documents: that of a plugin has no file and no hash."""
        return short_name(self.source)

    @abstractmethod
    def documents(self, context: SourceContext) -> Iterator[SourceDocument]:
        """Yield the documents, one at a time, in the same order in each call and each process.

        A corpus reads a source more than once, and may stop before its end. Each document has an id
        of its own. Its `split` may be `train` or `heldout`; by default, the text's hash decides.

        Raises:
            DataError: A document cannot be read.
        """

    def origin(self, context: SourceContext) -> dict[str, Any]:
        """Return what determines the documents, beside the code, without absolute paths.

        By default, the settings, with a hash of the files that a setting of type `Path` names. Add
        what else documents depend on, such as the revision of a download.

        Raises:
            DataError: A path names nothing.
        """
        return with_contents(self.model_dump(mode="json", include={*self._own_names()}), self)

    def folder(self, context: SourceContext) -> Path | None:
        """Return the folder that it reads, where no corpus may be built; most have none."""
        return None

    def anchored(self, base: Path) -> Self:
        """Return the source with relative paths in its settings resolved against `base`."""
        if ".py:" not in self.source and (base / self.short_name).exists():
            raise ConfigError(
                f"'{self.short_name}' is an installed plugin and also a file or folder; uninstall "
                f"the plugin, or name the path as ./{self.short_name}"
            )
        own = {name: getattr(self, name) for name in self._own_names()}
        paths = {k: base / expanded(path) for k, path in own.items() if isinstance(path, Path)}
        return self.model_copy(update=paths)

    def _own_names(self) -> list[str]:
        return [name for name in type(self).model_fields if name not in TextSource.model_fields]
