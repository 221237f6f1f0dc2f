"""Using a model from Python: `predict`, `encode`, `push` and `run_mteb`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from biphasic.api.arguments import check_arguments
from biphasic.errors import ConfigError
from biphasic.export import MAX_SHARD_SIZE

if TYPE_CHECKING:
    from biphasic.api.results.use import BenchmarkScores, Predictions, Upload, Vectors
    from biphasic.export.write import Format
    from biphasic.tasks.finetuned import FinetunedModel
    from biphasic.tasks.inputs import Source

Precision = Literal["fp32", "bf16"]
DTYPES: dict[Precision, Literal["float32", "bfloat16"]] = {"fp32": "float32", "bf16": "bfloat16"}


@check_arguments()
def predict(
    folder: Path | str,
    source: Source,
    out: Path | str | None = None,
    *,
    columns: Sequence[str] = (),
    format: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    quiet: bool = False,
) -> Predictions:
    """Predict with a fine-tuned model: one row per example, in order.

    Args:
        folder: Folder made by `biphasic finetune`.
        source: A file (.jsonl, .csv, .tsv, .parquet or .txt); `-` is standard input. In Python also
            a list: of texts, of tuples (pairs; question and context), or of rows by name.
        out: .jsonl, .csv or .parquet; `-` is JSON lines on standard output. In Python, the result
            has the rows when None.
        columns: Text columns; two for pairs, or for question and context. Default: see
            docs/tasks.md.
        format: jsonl, csv, tsv, parquet or txt (one text per line). Default: by suffix; txt for
            `-`.
        device: Compute device: cpu, cuda or cuda:N. Default: the first GPU, else the CPU.
        threads: Compute threads on the CPU. Default: one per core; fewer are faster where other
            programs run.
        quiet: Show results and errors only.

    Raises:
        DataError: The folder has no fine-tuned model, a file is damaged, or an example is unusable.

    Example:
        >>> from biphasic import predict
        >>> found = predict("sorter", ["the cat sat on the mat"])
        >>> found.rows[0]["label"] in ("good", "bad"), found.frame.shape
        (True, (1, 3))
    """
    from biphasic.execution.slots import check_cores
    from biphasic.files import expanded
    from biphasic.model.compute.device import compute_threads

    check_cores(num_threads=threads or 1)
    place = expanded(folder)
    with compute_threads(threads):
        return predicted(
            place, source, out, columns=columns, format=format, device=device, quiet=quiet
        )


@check_arguments()
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
    threads: int | None = None,
    quiet: bool = False,
) -> Vectors:
    """Embed texts: one vector per text, in order.

    Args:
        model: Folder of a state, of a transformers model or of a sentence-transformers model, or a
            hub id.
        source: As in `predict`.
        out: .npy for vectors; .parquet for vectors with text ids. In Python, the vectors are kept
            in memory when None.
        column: Column or key of the text.
        prefix: Prefix of every text.
        prompt: Name of a prompt of the model to prepend to every text.
        normalize: Normalize vectors to unit length.
        max_seqlen: Maximum input length in tokens. Default: the model's limit.
        batch_tokens: Maximum tokens per batch. Default: 4096; 65536 on a GPU.
        precision: Compute precision.
        revision: Revision of a model on the hub.
        format: As in `predict`.
        device: As in `predict`.
        threads: As in `predict`.
        quiet: Show results and errors only.

    Raises:
        ConfigError: A setting does not fit the model.
        DataError: Model or texts are missing or damaged.
        ModelError: The model pools in another way than by the mean, or the first or last state.

    Example:
        >>> from biphasic import encode
        >>> encode("my-encoder", ["the cat sat", "the dog ran"]).vectors.shape  # texts, width
        (2, 32)
    """
    from biphasic.api.results.use import Vectors, length_notes
    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.execution.slots import check_cores
    from biphasic.files import expanded
    from biphasic.model.compute.device import compute_threads, parse_device
    from biphasic.progress import progress_bar, progress_console
    from biphasic.tasks.embedding import (
        Choices,
        embedding_settings,
        fetch_embedding_model,
        never_saw_both_ways,
    )
    from biphasic.tasks.encode import SUFFIXES, Encoded, encode_file
    from biphasic.tasks.inputs import open_source
    from biphasic.tasks.outputs import check_output

    if precision not in DTYPES:
        raise ConfigError(f"precision: {precision!r}; give fp32 or bf16")
    target = None if out is None else expanded(out)
    if target is not None:
        check_output(target, SUFFIXES)
    check_cores(num_threads=threads or 1)
    parse_device(device)  # before anything is fetched
    opened = open_source(source, [column], format=format)
    choices = Choices(max_seqlen=max_seqlen, prefix=prefix, prompt=prompt, normalize=normalize)
    folder = fetch_embedding_model(str(model), revision=revision)
    settings = embedding_settings(folder, choices)
    windows: Encoded = []
    bar = progress_bar(progress_console(quiet=quiet), "encoding", unit="texts")
    with compute_threads(threads), bar as report:
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
    notes = length_notes(summary)
    if never_saw_both_ways(folder):
        notes = (
            f"warning: {model} is a decoder not trained for bidirectional attention; convert it to "
            "an encoder with 'biphasic adapt'",
            *notes,
        )
    if wrong := TextTokenizer.load(folder).warning:
        notes = (f"warning: {wrong}", *notes)
    return Vectors(tuple(windows), target, summary.num_examples, summary.seconds, notes)


@check_arguments()
def export_model(
    model: Path | str,
    out: Path | str,
    *,
    format: Format = "hf",
    precision: Precision = "fp32",
    max_shard_size: str = MAX_SHARD_SIZE,
    revision: str | None = None,
    quiet: bool = False,
) -> Path:
    """Export an encoder, with a model card, for use without biphasic.

    Each export is verified in a separate process that cannot import biphasic.

    Args:
        model: Folder of a state or of a transformers model, or a hub id.
        out: Folder to write.
        format: hf (transformers), sentence-transformers (also loads in transformers), or onnx
            (onnxruntime only).
        precision: Precision of the weights.
        max_shard_size: Split larger weights into several files.
        revision: Revision of a model on the hub.
        quiet: Show results and errors only.

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
    from biphasic.export.write import write_export
    from biphasic.files import expanded
    from biphasic.progress import progress_bar, progress_console, say_on

    if precision not in DTYPES:
        raise ConfigError(f"precision: {precision!r}; give fp32 or bf16")
    console = progress_console(quiet=quiet)
    with progress_bar(console, "exporting"):
        return write_export(
            model,
            expanded(out),
            say=say_on(console),
            format=format,
            dtype=DTYPES[precision],
            max_shard_size=max_shard_size,
            revision=revision,
        )


@check_arguments()
def push(
    folder: Path | str,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    go: bool = False,
) -> Upload:
    """Upload an export to a hub repository; by default, only list its files.

    Args:
        folder: Folder made by `biphasic export`, `adapt` or `finetune`.
        repository: Repository on the hub, as OWNER/NAME.
        private: Create a private repository.
        revision: Branch, created if missing. Default: main.
        go: Upload. Without it, only list the files.

    Raises:
        ConfigError: The name is invalid, or there is no token of the hub.
        DataError: The folder has no export, or the hub cannot be reached.

    Example:
        >>> from biphasic import push
        >>> push("adapted", "me/adapted").address is None
        True
    """
    from biphasic.api.results.use import Upload
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


@check_arguments()
def run_mteb(
    model: Path | str,
    tasks: Sequence[str],
    out: Path | str = "mteb",
    *,
    data: Path | str | None = None,
    prefix: str | None = None,
    max_seqlen: int | None = None,
    revision: str | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> BenchmarkScores:
    """Run tasks of mteb.

    `biphasic analyze` compares all models whose results are in a folder. A task that is finished
    with this model and these data is not run again.

    Args:
        model: As in `encode`.
        tasks: Names of mteb's tasks.
        out: Folder of the results, for all models. mteb reads it too.
        data: Folder with copies of the tasks' datasets, each named like its task or its repository.
            Default: the hub.
        prefix: Prefix of every text. Default: the prompts of a sentence-transformers model, as mteb
            uses them.
        max_seqlen: As in `encode`.
        revision: As in `encode`.
        device: As in `predict`.
        quiet: Show results and errors only.

    Raises:
        ConfigError: mteb is not installed or has no such task.
        DataError: The model or the data of a task are missing or damaged.
        ModelError: The model pools in another way than by the mean, or the first or last state.

    Example:
        >>> from biphasic import run_mteb
        >>> run_mteb("my-encoder", ["STS15"], "scores", data="copies")  # doctest: +SKIP
        STS15 cosine_spearman: 72.10, scores of 3,000 examples
    """
    from importlib.util import find_spec

    from biphasic.api.results.use import BenchmarkScores
    from biphasic.extras import install_command
    from biphasic.files import expanded

    if find_spec("mteb") is None:
        raise ConfigError(f"mteb is not installed: {install_command('mteb')}")
    from biphasic.evaluation.benchmark import run_benchmark
    from biphasic.model.compute.device import computing_on, parse_device
    from biphasic.progress import say_on_stderr
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
            say=say_on_stderr(quiet=quiet),
        )
        return BenchmarkScores(tuple(scores), target)


def predicted(
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
    """Predict as `predict` does, with a model that may be loaded."""
    from biphasic.api.results.use import Predictions, length_notes
    from biphasic.files import expanded
    from biphasic.model.compute.device import parse_device
    from biphasic.progress import progress_bar, progress_console
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
    return Predictions(tuple(rows), summary.num_examples, file, length_notes(summary))
