"""Models in use from Python: `load`, and the `TextEncoder` that it returns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from biphasic.api.use import DTYPES, Precision, Predict, push
from biphasic.api.verb import Device, Function, Revision, option
from biphasic.errors import ConfigError, DataError
from biphasic.model.compute.device import computing_on, parse_device

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from biphasic.export.push import Upload
    from biphasic.tasks.embedding import Embedder, LongVectors
    from biphasic.tasks.encoding import FinetunedModel, LongTexts
    from biphasic.tasks.inputs import Source
    from biphasic.tasks.language import Fillings, LanguageModel, PairScores
    from biphasic.tasks.protocol import Reading
    from biphasic.tasks.use import Predictions

_PAIR = ("sentence_good", "sentence_bad")


class Load(Device, Revision):
    """Open a model for use: a state, an export, a fine-tuned folder, or a hub id.

    Its files are compared with their hashes now; its weights are loaded when they are first needed,
    and stay in memory.

    Raises:
        ConfigError: The device does not exist.
        DataError: The model is missing or damaged.

    Example:
        >>> import biphasic
        >>> encoder = biphasic.load("my-encoder")
        >>> encoder.encode(["the cat sat", "the dog ran"], normalize=True).shape
        (2, 32)
        >>> text = f"the cat {encoder.mask_token} on the mat"
        >>> len(encoder.fill_mask(text).candidates[0])
        5
        >>> pairs = [("the cat sat on the mat", "mat the on sat cat the")]
        >>> encoder.score(pairs).accuracy in (0.0, 0.5, 1.0)
        True
        >>> biphasic.load("sorter").predict(["the dog ran to Paris"]).num_examples
        1
        >>> encoder.push("me/my-encoder").repository
        'me/my-encoder'
    """

    model: Path | str = option(type=str)
    """Folder of a state or of a transformers model, or a hub id."""
    _: KW_ONLY
    precision: Precision = option(default="fp32", choices=("fp32", "bf16"))
    """Compute precision of vectors and of probabilities of tokens; `predict` computes as the model
    was scored."""

    def __call__(self) -> TextEncoder:
        from biphasic.tasks.embedding import fetch_embedding_model

        parse_device(self.device)
        folder = fetch_embedding_model(str(self.model), revision=self.revision)
        return TextEncoder(
            folder, name=str(self.model), precision=self.precision, device=self.device
        )


class TextEncoder:
    """A model in use; `load` makes it.

    Attributes:
        folder: The model's folder.
    """

    def __init__(
        self, folder: Path, *, name: str, precision: Precision, device: str | None
    ) -> None:
        self.folder = folder
        self._name = name
        self._precision: Precision = precision
        self._device = device
        self._language_models: dict[str | None, LanguageModel] = {}

    def __repr__(self) -> str:
        """Return the name of the model, as it was given."""
        return f"biphasic.load({self._name!r})"

    @cached_property
    def mask_token(self) -> str:
        """The text of a hidden token in `fill_mask`, such as `<|mask|>` or `[MASK]`."""
        from biphasic.data.tokens.tokenizer import TextTokenizer

        tokenizer = TextTokenizer.load(self.folder)
        return tokenizer.decode([tokenizer.mask_id])

    def encode(
        self,
        texts: Iterable[str],
        *,
        prefix: str | None = None,
        prompt: str | None = None,
        normalize: bool = False,
        max_seqlen: int | None = None,
        long_texts: LongVectors | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts, as `biphasic.encode` does; its warnings are Python's, once per model.

        Returns:
            float32 [num_texts, width], in order.
        """
        from biphasic.rows import text_fault
        from biphasic.tasks.embedding import Choices, embedding_settings
        from biphasic.tasks.inputs import ListedInput, refuse_table

        if isinstance(texts, str):
            raise ConfigError("texts: one text; give a list, such as [text]")
        refuse_table(texts)
        listed = list(texts)
        for place, text in enumerate(listed, 1):
            if fault := text_fault(text):
                raise DataError(f"list:{place}: {fault}")
        choices = Choices(max_seqlen, prefix, prompt, normalize, long_texts)
        embedder = replace(self._embedder, settings=embedding_settings(self.folder, choices))
        rows = [*ListedInput([{"text": text} for text in listed]).rows()]
        return embedder.embed(listed, rows, total=len(listed))[0]

    def predict(
        self,
        source: Source,
        out: Path | str | None = None,
        *,
        columns: Sequence[str] = (),
        top: int | None = None,
        long_texts: LongTexts | None = None,
        format: str | None = None,
        quiet: bool = False,
    ) -> Predictions:
        """Predict with a fine-tuned model, as `biphasic.predict` does."""
        predict = Predict(
            self.folder, source, out,
            columns=columns, top=top, long_texts=long_texts, format=format, device=self._device,
            quiet=quiet,
        )  # fmt: skip
        return predict.with_model(lambda _: self._finetuned)

    def fill_mask(self, text: str, *, top: int = 5, reading: Reading | None = None) -> Fillings:
        """Return the most probable tokens for each mask of a text.

        Args:
            text: With the model's `mask_token`, once or more often.
            top: Number of candidates for each mask.
            reading: `mlm`, or `mntp` for a model trained by masked next-token prediction; the last
                objective of a state, or of the one that was exported, when None.

        Raises:
            ConfigError: The vocabulary does not have so many tokens.
            DataError: The text has no mask, or is too long.
            ModelError: The model has no language-model head, or was last trained to predict the
                next token.
        """
        from biphasic.tasks.language import Fillings

        with self._computing():
            candidates = self._language_model(reading).candidates(text, most=top)
        return Fillings(text, tuple(map(tuple, candidates)))

    def score(self, pairs: Source, *, reading: Reading | None = None) -> PairScores:
        """Score minimal pairs: is the acceptable sentence the more probable one?

        Args:
            pairs: Tuples of an acceptable sentence and one that is not; or rows with
                `sentence_good` and `sentence_bad`, as a list or a file.
            reading: As in `fill_mask`, or `clm`.

        Raises:
            DataError: A sentence is empty, or has no token.
            ModelError: The model has no language-model head.
        """
        from biphasic.tasks.inputs import open_source
        from biphasic.tasks.language import PairScores, read_pairs

        read = read_pairs(open_source(pairs, _PAIR))
        with self._computing():
            model = self._language_model(reading)
            scores = model.pair_scores(read)
        names = ("good", "bad", "correct")
        columns = zip(*(scores.columns[name] for name in names), strict=True)
        rows = (
            {"id": id_, **{name: float(value) for name, value in zip(names, values, strict=True)}}
            for id_, values in zip(scores.ids, columns, strict=True)
        )
        return PairScores(scores.metrics["accuracy"], tuple(rows), str(model.protocol.reading))

    def push(
        self,
        repository: str,
        *,
        private: bool = False,
        revision: str | None = None,
        go: bool = False,
    ) -> Upload:
        """Upload the model, as `biphasic.push` does; a state must be exported first."""
        return push(self.folder, repository, private=private, revision=revision, go=go)

    @cached_property
    def _embedder(self) -> Embedder:
        from biphasic.tasks.embedding import (
            Choices,
            embedding_settings,
            load_embedder,
            warnings_on,
        )

        for why in warnings_on(self.folder, name=self._name):
            warnings.warn(why, stacklevel=4)  # at the call of `encode`
        with self._computing():
            settings = embedding_settings(self.folder, Choices())
            return load_embedder(settings, precision=DTYPES[self._precision])

    @cached_property
    def _finetuned(self) -> FinetunedModel:
        from biphasic.tasks.use import load_finetuned

        return load_finetuned(self.folder)

    def _language_model(self, reading: Reading | None) -> LanguageModel:
        from biphasic.tasks.language import load_language_model

        if reading not in self._language_models:
            self._language_models[reading] = load_language_model(
                self.folder, reading=reading, is_bf16=self._precision == "bf16"
            )
        return self._language_models[reading]

    def _computing(self) -> AbstractContextManager[None]:
        return computing_on(parse_device(self._device))


load = Function(Load)
