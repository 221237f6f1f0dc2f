"""Using a model from Python: `load`, `predict`, `encode` and `push`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from biphasic.api.answers import (
    BenchmarkScores,
    Fillings,
    PairScores,
    Predictions,
    Upload,
    Vectors,
    length_notes,
)
from biphasic.errors import ConfigError
from biphasic.extras import install_command
from biphasic.files import expanded
from biphasic.progress import progress_bar, progress_console

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from biphasic.tasks.embedding import Embedder
    from biphasic.tasks.finetuned import FinetunedModel
    from biphasic.tasks.inputs import Source
    from biphasic.tasks.language import LanguageModel
    from biphasic.tasks.protocol import Reading

Precision = Literal["fp32", "bf16"]
DTYPES: dict[Precision, Literal["float32", "bfloat16"]] = {"fp32": "float32", "bf16": "bfloat16"}
_PAIR = ("sentence_good", "sentence_bad")


def predict(
    folder: Path | str,
    source: Source,
    out: Path | str | None = None,
    *,
    columns: Sequence[str] = (),
    format: str | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> Predictions:
    """Predict with a fine-tuned model: one row per example, in order.

    Args:
        folder: Folder made by `finetune`.
        source: A file (`.jsonl`, `.csv`, `.tsv`, `.parquet` or `.txt`), `-` for standard input, or
            a list: of texts, of tuples (pairs; question and context), or of rows by name.
        out: `.jsonl`, `.csv` or `.parquet`; `-` for JSON lines on standard output. The result has
            the rows when None.
        columns: Columns of the text; two for pairs, or for question and context. See docs/tasks.md.
        format: Of the file; by its suffix when None.
        device: `cpu`, `cuda` or `cuda:N`; the first GPU, or else the CPU, when None.
        quiet: Show no progress.

    Raises:
        DataError: The folder has no fine-tuned model, a file is damaged, or an example is unusable.

    Example:
        >>> from biphasic import predict
        >>> found = predict("sorter", ["the cat sat on the mat"])
        >>> found.rows[0]["label"] in ("good", "bad"), found.frame.shape
        (True, (1, 3))
    """
    return _predicted(
        expanded(folder), source, out, columns=columns, format=format, device=device, quiet=quiet
    )


def encode(
    model: Path | str,
    source: Source,
    out: Path | str | None = None,
    *,
    column: str = "text",
    prefix: str | None = None,
    prompt: str | None = None,
    normalize: bool = False,
    max_seqlen: int | None = None,
    batch_tokens: int | None = None,
    precision: Precision = "fp32",
    revision: str | None = None,
    format: str | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> Vectors:
    """Embed texts by mean pooling: one vector per text, in order.

    Args:
        model: Folder of a state, of a transformers model or of a sentence-transformers model, or a
            hub id.
        source: A file or a list, as in `predict`.
        out: `.npy` for vectors, `.parquet` for vectors with text ids. The vectors are kept in
            memory when None.
        column: Column or key of the text.
        prefix: Prefix of every text.
        prompt: Name of a prompt of the model to prepend to every text.
        normalize: Normalize vectors to unit length.
        max_seqlen: Maximum input length in tokens; the model's limit when None.
        batch_tokens: Maximum tokens per batch; 4096, and 65536 on a GPU, when None.
        precision: Compute precision.
        revision: Revision of a model on the hub.
        format: As in `predict`.
        device: As in `predict`.
        quiet: Show no progress.

    Raises:
        ConfigError: A setting does not fit the model.
        DataError: Model or texts are missing or damaged.
        ModelError: The model pools in another way than by the mean.

    Example:
        >>> from biphasic import encode
        >>> encode("my-encoder", ["the cat sat", "the dog ran"]).vectors.shape  # texts, width
        (2, 32)
    """
    from biphasic.model.compute.device import parse_device
    from biphasic.tasks.embedding import (
        Choices,
        embedding_settings,
        fetch_embedding_model,
        never_saw_both_ways,
    )
    from biphasic.tasks.encode import SUFFIXES, Encoded, encode_file
    from biphasic.tasks.inputs import open_source
    from biphasic.tasks.outputs import check_output

    target = None if out is None else expanded(out)
    if target is not None:
        check_output(target, SUFFIXES)
    parse_device(device)  # before anything is fetched
    opened = open_source(source, [column], format=format)
    choices = Choices(max_seqlen=max_seqlen, prefix=prefix, prompt=prompt, normalize=normalize)
    folder = fetch_embedding_model(str(model), revision=revision)
    settings = embedding_settings(folder, choices)
    windows: Encoded = []
    with progress_bar(progress_console(quiet=quiet), "encoding", unit="texts") as report:
        summary = encode_file(
            settings,
            opened,
            windows if target is None else target,
            field=column,
            precision=DTYPES[precision],
            batch_tokens=batch_tokens,
            device=device,
            report=report,
        )
    notes = length_notes(summary.num_texts, summary.num_cut, summary.num_empty, settings.max_seqlen)
    if never_saw_both_ways(folder):
        notes = (
            f"warning: {model} is a decoder not trained for bidirectional attention; convert it to "
            "an encoder with 'biphasic adapt'",
            *notes,
        )
    return Vectors(tuple(windows), target, summary.num_texts, summary.seconds, notes)


def push(
    folder: Path | str,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    go: bool = False,
) -> Upload:
    """Upload an export to a hub repository; without `go`, only list the files.

    Args:
        folder: Folder made by `export_model`, `adapt` or `finetune`.
        repository: Repository on the hub, as `OWNER/NAME`.
        private: Create it as private.
        revision: Branch, created if missing; main when None.
        go: Upload.

    Raises:
        ConfigError: The name is invalid, or there is no token of the hub.
        DataError: The folder has no export, or the hub cannot be reached.

    Example:
        >>> from biphasic import push
        >>> push("adapted", "me/adapted").address is None
        True
    """
    from biphasic.export.push import plan_push
    from biphasic.export.push import push as upload

    plan = plan_push(folder, repository, private=private, revision=revision)
    return Upload(
        repository=plan.repository,
        revision=plan.revision,
        is_private=plan.is_private,
        files=plan.files,
        notes=plan.warnings,
        address=upload(plan) if go else None,
    )


def run_mteb(
    model: Path | str,
    tasks: Sequence[str],
    out: Path | str,
    *,
    data: Path | str | None = None,
    prefix: str | None = None,
    max_seqlen: int | None = None,
    revision: str | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> BenchmarkScores:
    """Run tasks of mteb; `analyze(out)` compares all models whose results are there.

    A task that is finished with this model and these data is not run again.

    Args:
        model: As in `encode`.
        tasks: Names of mteb's tasks.
        out: Folder of the results, for all models. mteb reads it too.
        data: Folder with copies of the tasks' datasets, each named like its task or its
            repository; the hub when None.
        prefix: Prefix of every text. When None, a sentence-transformers model's prompts are used as
            mteb uses them.
        max_seqlen: Maximum input length in tokens; the model's limit when None.
        revision: Revision of a model on the hub.
        device: As in `predict`.
        quiet: Show no progress.

    Raises:
        ConfigError: mteb is not installed or has no such task.
        DataError: The model or the data of a task are missing or damaged.
        ModelError: The model pools in another way than by the mean.

    Example:
        >>> from biphasic import run_mteb
        >>> run_mteb("my-encoder", ["STS15"], "scores", data="copies")  # doctest: +SKIP
        STS15 cosine_spearman: 72.10, scores of 3,000 examples
    """
    if find_spec("mteb") is None:
        raise ConfigError(f"mteb is not installed: {install_command('mteb')}")
    from biphasic.evaluation.benchmark import run_benchmark
    from biphasic.model.compute.device import computing_on, parse_device
    from biphasic.progress import say_on
    from biphasic.tasks.embedding import Choices

    chosen, target = parse_device(device), expanded(out)
    with computing_on(chosen):
        scores = run_benchmark(
            str(model),
            tasks,
            target,
            data=None if data is None else expanded(data),
            revision=revision,
            choices=Choices(prefix=prefix, max_seqlen=max_seqlen),
            say=say_on(progress_console(quiet=quiet)),
        )
        return BenchmarkScores(tuple(scores), target)


def load(
    model: Path | str,
    *,
    revision: str | None = None,
    precision: Precision = "fp32",
    device: str | None = None,
) -> TextEncoder:
    """Open a model for use: a state, an export, a fine-tuned folder, or a hub id.

    Its files are compared with their hashes now; its weights are loaded when they are first needed,
    and stay in memory.

    Args:
        model: Folder of a state or of a transformers model, or a hub id.
        revision: Revision of a model on the hub.
        precision: Compute precision of vectors and probabilities.
        device: `cpu`, `cuda` or `cuda:N`; the first GPU, or else the CPU, when None.

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
    from biphasic.model.compute.device import parse_device
    from biphasic.tasks.embedding import fetch_embedding_model

    if precision not in DTYPES:
        raise ConfigError(f"precision: {precision!r}; give fp32 or bf16")
    parse_device(device)
    folder = fetch_embedding_model(str(model), revision=revision)
    return TextEncoder(folder, name=str(model), precision=precision, device=device)


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
        """What stands for a hidden token in `fill_mask`, such as `<|mask|>` or `[MASK]`."""
        from biphasic.data.tokens.tokenizer import TextTokenizer

        tokenizer = TextTokenizer.load(self.folder)
        return tokenizer.decode([tokenizer.mask_id])

    def encode(
        self,
        texts: Sequence[str],
        *,
        prefix: str | None = None,
        prompt: str | None = None,
        normalize: bool = False,
        max_seqlen: int | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts, as `biphasic.encode` does.

        Returns:
            float32 [num_texts, width], in order.
        """
        from biphasic.tasks.embedding import Choices, embedding_settings

        if isinstance(texts, str):
            raise ConfigError("texts: one text; give a list, such as [text]")
        choices = Choices(max_seqlen=max_seqlen, prefix=prefix, prompt=prompt, normalize=normalize)
        settings = embedding_settings(self.folder, choices)
        return replace(self._embedder, settings=settings).embed(list(texts))[0]

    def predict(
        self,
        source: Source,
        out: Path | str | None = None,
        *,
        columns: Sequence[str] = (),
        format: str | None = None,
        quiet: bool = False,
    ) -> Predictions:
        """Predict with a fine-tuned model, as `biphasic.predict` does."""
        return _predicted(
            self.folder,
            source,
            out,
            columns=columns,
            format=format,
            device=self._device,
            quiet=quiet,
            loaded=lambda _: self._finetuned,
        )

    def fill_mask(self, text: str, *, top: int = 5, reading: Reading | None = None) -> Fillings:
        """Return the most probable tokens for each mask of a text.

        Args:
            text: With the model's `mask_token`, once or more often.
            top: Number of candidates for each mask.
            reading: `mlm`, or `mntp` for a model trained by masked next-token prediction; the last
                objective of a state when None.

        Raises:
            DataError: The text has no mask, or is too long.
            ModelError: The model has no language-model head, or was last trained to predict the
                next token.
        """
        with self._computing():
            found = self._language_model(reading).candidates(text, most=top)
        return Fillings(text, tuple(map(tuple, found)))

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
        from biphasic.tasks.language import read_pairs

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
        from biphasic.tasks.embedding import Choices, embedding_settings, load_embedder

        with self._computing():
            settings = embedding_settings(self.folder, Choices())
            return load_embedder(settings, precision=DTYPES[self._precision])

    @cached_property
    def _finetuned(self) -> FinetunedModel:
        from biphasic.tasks.finetuned import load_finetuned

        return load_finetuned(self.folder)

    def _language_model(self, reading: Reading | None) -> LanguageModel:
        from biphasic.tasks.language import load_language_model

        if reading not in self._language_models:
            self._language_models[reading] = load_language_model(
                self.folder, reading=reading, is_bf16=self._precision == "bf16"
            )
        return self._language_models[reading]

    def _computing(self) -> AbstractContextManager[None]:
        from biphasic.model.compute.device import computing_on, parse_device

        return computing_on(parse_device(self._device))


def _predicted(
    folder: Path,
    source: Source,
    out: Path | str | None,
    *,
    columns: Sequence[str],
    format: str | None,
    device: str | None,
    quiet: bool,
    loaded: Callable[[Path], FinetunedModel] | None = None,
) -> Predictions:
    from biphasic.model.compute.device import parse_device
    from biphasic.tasks.inputs import STANDARD_INPUT, open_source
    from biphasic.tasks.outputs import ROW_SUFFIXES, check_output
    from biphasic.tasks.predict import fields_of, predict_file

    parse_device(device)
    file = None if out is None or str(out) == STANDARD_INPUT else expanded(out)
    if file is not None:
        check_output(file, ROW_SUFFIXES)
    opened = open_source(source, columns or fields_of(folder), format=format)
    rows: list[Mapping[str, Any]] = []
    with progress_bar(progress_console(quiet=quiet), "predicting", unit="texts") as report:
        summary = predict_file(
            folder,
            opened,
            rows if out is None else file,
            columns=columns,
            device=device,
            report=report,
            loaded=loaded,
        )
    notes = length_notes(
        summary.num_examples, summary.num_cut, summary.num_empty, summary.max_seqlen
    )
    return Predictions(tuple(rows), summary.num_examples, file, notes)
