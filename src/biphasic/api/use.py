"""Using a model from Python: `predict`, `encode`, `push` and `run_mteb`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from biphasic.api.verb import Computing, Device, Function, Quiet, Revision, Verb, option
from biphasic.errors import ConfigError
from biphasic.export import MAX_SHARD_SIZE, As, ExportSettings, Format
from biphasic.files import expanded
from biphasic.model.compute.device import computing_on, parse_device

if TYPE_CHECKING:
    from biphasic.evaluation.benchmark import BenchmarkScores
    from biphasic.export.push import Upload
    from biphasic.tasks.embedding import LongVectors
    from biphasic.tasks.encoding import FinetunedModel, LongTexts
    from biphasic.tasks.inputs import Source
    from biphasic.tasks.use import Predictions, Vectors

Precision = Literal["fp32", "bf16"]
DTYPES: dict[Precision, Literal["float32", "bfloat16"]] = {"fp32": "float32", "bf16": "bfloat16"}


class Texts(Computing, Quiet):
    """How texts are read, and what computes."""

    _: KW_ONLY
    format: str | None = None
    """jsonl, csv, tsv, parquet or txt (one text per line). Default: by suffix; txt for `-`."""


class Predict(Texts):
    """Predict with a fine-tuned model: one row per example, in order.

    Raises:
        DataError: The folder has no fine-tuned model, a file is damaged, or an example is unusable.

    Example:
        >>> from biphasic import predict
        >>> found = predict("sorter", ["the cat sat on the mat"])
        >>> found.rows[0]["label"] in ("good", "bad"), found.frame.shape
        (True, (1, 5))
    """

    folder: Path | str
    """Folder made by `biphasic finetune`."""
    source: Source = option(metavar="INPUT", type=str)
    """A file (.jsonl, .csv, .tsv, .parquet or .txt); `-` is standard input. In Python also a list:
    of texts, of tuples (pairs; question and context), or of rows by name."""
    out: Path | str | None = option(default=None, flag="--out", instead="-")
    """.jsonl, .csv or .parquet; `-` is JSON lines on standard output. In Python, the result has the
    rows when None."""
    _: KW_ONLY
    columns: Sequence[str] = option(default=(), flag="--column")
    """Text columns; two for pairs, or for question and context. Default: see docs/tasks.md."""
    top: int | None = option(default=None, least=1)
    """Number of most probable labels in `probabilities`, best first. Default: all."""
    long_texts: LongTexts | None = option(default=None, choices=("mean", "max", "truncate"))
    """Texts that are longer than the model reads: mean or max of the outputs of windows, or
    truncate. Default: entities and answers are found in windows; others are refused."""

    def __call__(self) -> Predictions:
        with self.computing():
            return self.with_model()

    def with_model(self, load: Callable[[Path], FinetunedModel] | None = None) -> Predictions:
        """Predict with the model that is loaded from the folder."""
        from biphasic.progress import progress_bar
        from biphasic.tasks.inputs import ROW_SUFFIXES, STANDARD_INPUT, check_output, open_source
        from biphasic.tasks.use import Predictions, fields_of, predict_file

        folder, out = expanded(self.folder), self.out
        file = None if out is None or str(out) == STANDARD_INPUT else expanded(out)
        if file is not None:
            check_output(file, ROW_SUFFIXES)
        opened = open_source(self.source, self.columns or fields_of(folder), format=self.format)
        rows: list[Mapping[str, Any]] = []
        with progress_bar(self.console, "predicting", unit="texts") as report:
            summary = predict_file(
                folder,
                opened,
                rows if out is None else file,
                columns=self.columns,
                top=self.top,
                long_texts=self.long_texts,
                device=self.device,
                report=report,
                loaded=load,
            )
        return Predictions(tuple(rows), summary.num_examples, file, summary.notes())


class Encode(Texts, Revision):
    """Embed texts: one vector per text, in order.

    Raises:
        ConfigError: A setting does not fit the model.
        DataError: Model or texts are missing or damaged.
        ModelError: The model pools in another way than by the mean, or the first or last state.

    Example:
        >>> from biphasic import encode
        >>> encode("my-encoder", ["the cat sat", "the dog ran"]).vectors.shape  # texts, width
        (2, 32)
    """

    model: Path | str = option(type=str)
    """Folder of a state, of a transformers model or of a sentence-transformers model, or a hub
    id."""
    source: Source = option(metavar="FILE", type=str)
    """A file (.jsonl, .csv, .tsv, .parquet or .txt); `-` is standard input. In Python also a list:
    of texts, or of rows by name."""
    out: Path | str | None = option(default=None, flag="--out", is_required=True)
    """.npy for vectors; .parquet for vectors with text ids. In Python, the vectors are kept in
    memory when None."""
    _: KW_ONLY
    column: str = "text"
    """Column or key of the text."""
    prefix: str | None = None
    """Prefix of every text."""
    prompt: str | None = None
    """Name of a prompt of the model to prepend to every text."""
    normalize: bool = False
    """Normalize vectors to unit length."""
    max_seqlen: int | None = option(default=None, least=8)
    """Maximum input length in tokens; longer texts are truncated unless `long_texts` is mean.
    Default: the model's limit."""
    long_texts: LongVectors | None = option(default=None, choices=("mean", "truncate"))
    """Texts that are longer than the model reads: mean of the vectors of windows, or truncate.
    Default: they are refused."""
    batch_tokens: int | None = option(default=None, least=1)
    """Maximum tokens per batch. Default: 4096; 65536 on a GPU."""
    precision: Precision = option(default="fp32", choices=("fp32", "bf16"))
    """Compute precision."""

    def __call__(self) -> Vectors:
        from biphasic.progress import progress_bar
        from biphasic.tasks.embedding import (
            Choices,
            embedding_settings,
            fetch_embedding_model,
            warnings_on,
        )
        from biphasic.tasks.inputs import check_output, open_source
        from biphasic.tasks.use import SUFFIXES, Encoded, Vectors, encode_file

        target = None if self.out is None else expanded(self.out)
        if target is not None:
            check_output(target, SUFFIXES)
        opened = open_source(self.source, [self.column], format=self.format)
        choices = Choices(
            max_seqlen=self.max_seqlen,
            prefix=self.prefix,
            prompt=self.prompt,
            normalize=self.normalize,
            long_texts=self.long_texts,
        )
        windows: Encoded = []
        with self.computing(), progress_bar(self.console, "encoding", unit="texts") as report:
            folder = fetch_embedding_model(str(self.model), revision=self.revision)
            summary = encode_file(
                embedding_settings(folder, choices),
                opened,
                windows if target is None else target,
                field=self.column,
                precision=DTYPES[self.precision],
                batch_tokens=self.batch_tokens,
                device=self.device,
                report=report,
            )
        warned = (f"warning: {why}" for why in warnings_on(folder, name=str(self.model)))
        notes = (*warned, *summary.notes())
        return Vectors(tuple(windows), target, summary.num_examples, summary.seconds, notes)


class ExportModel(Revision, Quiet):
    """Export an encoder, with a model card, for use without biphasic.

    Each export is verified in a separate process that cannot import biphasic.

    Returns:
        The folder. An existing one made from the same model and settings is kept. There is none if
        hidden states, logits, token ids or embeddings of the other process differ from ours.

    Raises:
        ConfigError: A setting is wrong, or `out` holds something else.
        DataError: The model is missing, has no weights or no mask token, or its tokenizer does not
            match.
        CheckpointError: A state is damaged.
        ModelError: The model cannot be an encoder, or the check failed.

    Example:
        >>> from biphasic import export_model
        >>> folder = export_model(state, "encoder", format="sentence-transformers")
        >>> (folder / "modules.json").is_file()
        True
    """

    model: Path | str = option(metavar="STATE", type=str)
    """Folder of a state or of a transformers model, or a hub id."""
    out: Path | str
    """Folder to write."""
    _: KW_ONLY
    format: Format = option(default="hf", choices=get_args(Format), type=str)
    """hf (transformers), sentence-transformers (also loads in transformers), or onnx (onnxruntime
    only)."""
    as_: As = option(default="auto", flag="--as", choices=get_args(As), type=str)
    """Class of an encoder of Llama's shape: auto (eurobert), eurobert, llama (for engines that read
    `is_causal: false`), or own (code in the folder, for older releases of transformers)."""
    precision: Precision = option(default="fp32", choices=("fp32", "bf16"))
    """Precision of the weights."""
    max_shard_size: str = MAX_SHARD_SIZE
    """Split larger weights into several files."""
    adapter: bool = False
    """Write LoRA as an adapter for peft, beside the model without it."""

    def __call__(self) -> Path:
        from biphasic.progress import progress_bar

        dtype = DTYPES[self.precision]
        settings = ExportSettings(self.format, self.as_, dtype, self.max_shard_size, self.adapter)
        settings.check()  # before torch is imported, which takes seconds
        from biphasic.export.write import write_export

        with progress_bar(self.console, "exporting"):
            out, revision = expanded(self.out), self.revision
            return write_export(self.model, out, settings, say=self.say, revision=revision)


class Push(Verb):
    """Upload an export to a hub repository; by default, only list its files.

    Raises:
        ConfigError: The name is invalid, or there is no token of the hub.
        DataError: The folder has no export, or the hub cannot be reached.

    Example:
        >>> from biphasic import push
        >>> push("adapted", "me/adapted").address is None
        True
    """

    folder: Path | str
    """Folder made by `biphasic export`, `adapt` or `finetune`."""
    repository: str = option(metavar="OWNER/NAME")
    """Repository on the hub, as OWNER/NAME."""
    _: KW_ONLY
    private: bool = False
    """Create a private repository."""
    revision: str | None = None
    """Branch, created if missing. Default: main."""
    go: bool = False
    """Upload. Without it, only list the files."""

    def __call__(self) -> Upload:
        from biphasic.export.push import plan_push
        from biphasic.export.push import push as upload

        plan = plan_push(self.folder, self.repository, private=self.private, revision=self.revision)
        return replace(plan, address=upload(plan)) if self.go else plan


class RunMteb(Device, Revision, Quiet):
    """Run tasks of mteb.

    `biphasic analyze` compares all models whose results are in a folder. A task that is finished
    with this model and these data is not run again.

    Raises:
        ConfigError: mteb is not installed or has no such task.
        DataError: The model or the data of a task are missing or damaged.
        ModelError: The model pools in another way than by the mean, or the first or last state.

    Example:
        >>> from biphasic import run_mteb
        >>> run_mteb("my-encoder", ["STS15"], "scores", data="copies")  # doctest: +SKIP
        STS15 cosine_spearman: 72.10, scores of 3,000 examples
    """

    model: Path | str = option(type=str)
    """Folder of a state, of a transformers model or of a sentence-transformers model, or a hub
    id."""
    tasks: Sequence[str] = option(flag="--task", metavar="NAME")
    """Names of mteb's tasks."""
    out: Path | str = option(default="mteb", flag="--out")
    """Folder of the results, for all models. mteb reads it too."""
    _: KW_ONLY
    data: Path | str | None = None
    """Folder with copies of the tasks' datasets, each named like its task or its repository.
    Default: the hub."""
    prefix: str | None = None
    """Prefix of every text. Default: the prompts of a sentence-transformers model, as mteb uses
    them."""
    max_seqlen: int | None = option(default=None, least=8)
    """Maximum input length in tokens. Default: the model's limit."""

    def __call__(self) -> BenchmarkScores:
        from importlib.util import find_spec

        from biphasic.errors import install_command
        from biphasic.evaluation.benchmark import BenchmarkScores

        if find_spec("mteb") is None:
            raise ConfigError(f"mteb is not installed: {install_command('mteb')}")
        from biphasic.evaluation.benchmark import run_benchmark
        from biphasic.tasks.embedding import Choices

        target = expanded(self.out)
        with computing_on(parse_device(self.device)):
            scores = run_benchmark(
                str(self.model),
                self.tasks,
                target,
                data=None if self.data is None else expanded(self.data),
                revision=self.revision,
                choices=Choices(prefix=self.prefix, max_seqlen=self.max_seqlen),
                say=self.say,
            )
            return BenchmarkScores(tuple(scores), target)


predict = Function(Predict)
encode = Function(Encode)
export_model = Function(ExportModel)
push = Function(Push)
run_mteb = Function(RunMteb)
