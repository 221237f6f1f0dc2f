"""Token classification: a label for each word, as BIO2 tags of entities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biphasic.facts import FIRST_KINDS
from biphasic.tasks.kinds.examples import LABELS, ExampleKind
from biphasic.tasks.kinds.kind import Predictions
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.tasks.records import ExampleTask, TaggedSentence
from biphasic.tasks.rows.labels import Labels, check_labels, found_tags
from biphasic.tasks.rows.readers import read_conll
from biphasic.tasks.rows.row import Row
from biphasic.tasks.rows.tags import check_bio, check_tag_set
from biphasic.tasks.rows.words import Words, words_of

if TYPE_CHECKING:
    import pyarrow as pa

    from biphasic.data.tokens.tokenizer import TextTokenizer
    from biphasic.tasks.custom.task_file import TaskFile
    from biphasic.tasks.encoded.tagging import EncodedTagging
    from biphasic.tasks.finetuned import FinetunedModel, HeadRecord


class Tagging(ExampleKind):
    """A tag per word, from its first token; cross-entropy, entity F1."""

    name = "tc"
    facts = FIRST_KINDS["tc"]
    settings = (LABELS,)
    columns = ("id", "tokens", "tags")
    numbered_columns = ("tokens", "tags")
    suffixes = (".jsonl", ".conll", ".iob2", ".bio", ".txt", ".tsv")
    paper_metric = "sentence_token_f1"
    ready_field = "tokens"
    does = "finds entities in a text"
    pipeline = "token-classification"
    form = "token-classification"

    def parse(self, row: Row, *, labels: Sequence[str], template: str | None) -> TaggedSentence:
        """Return words and the numbers of their tags."""
        del template
        words, tags = row.items("tokens", str), row.items("tags", str)
        if len(words) != len(tags):
            raise row.error(f"{len(words)} tokens but {len(tags)} tags")
        words = words_of(row).words
        check_bio(row, tags)
        numbers = {label: number for number, label in enumerate(labels)}
        for position, tag in enumerate(tags):
            if tag not in numbers:
                known = f"the labels are {', '.join(numbers)}"
                raise row.error(
                    f"unknown label '{tag}' at token {position}; {known}", token=position
                )
        return TaggedSentence(row.id(), words, tuple(numbers[tag] for tag in tags))

    def input_of(self, example: TaggedSentence) -> str:
        """Return the words, joined."""
        return " ".join(example.words)

    def reader(self, path: Path, file: TaskFile) -> Callable[[Path], Any]:
        """Return the reader of CoNLL's and similar files."""
        del path
        token, tag = (
            column if isinstance(column, int) else None
            for column in (file.columns.get("tokens"), file.columns.get("tags"))
        )
        return partial(read_conll, token_column=token, tag_column=tag)

    def check_labels(self, labels: Sequence[str], *, where: str) -> None:
        """Check that labels are BIO2 tags."""
        check_labels(labels, where=where)
        check_tag_set(labels, where=where)

    def found_labels(self, rows: Sequence[Row], *, source: str) -> Labels:
        """Return the tags of every type."""
        return found_tags(rows, source=source)

    def canonical(self, row: Row, labels: Labels | None) -> dict[str, Any]:
        """Return the tags by name."""
        tags = row.value.get("tags")
        if not labels or not isinstance(tags, list):
            return {}
        return {"tags": [labels.tag(row, position, tag) for position, tag in enumerate(tags)]}

    def encode(
        self, task: ExampleTask, tokenizer: TextTokenizer, *, protocol: FinetuneProtocol
    ) -> EncodedTagging:
        """Tokenise the words."""
        from biphasic.tasks.encoded.tagging import encode_tagging  # noqa: PLC0415

        return encode_tagging(task, tokenizer, protocol=protocol)

    def example(self, row: Row, record: HeadRecord) -> Words:
        """Return the words of `tokens`, or those of `text`."""
        del record
        return words_of(row)

    def prediction_columns(self, record: HeadRecord) -> dict[str, pa.DataType]:
        """Return entities with borders in characters (in words if these were given), and tags."""
        import pyarrow as pa  # noqa: PLC0415

        del record
        entity = pa.struct(
            [
                ("type", pa.string()),
                ("start", pa.int64()),
                ("end", pa.int64()),
                ("text", pa.string()),
                ("score", pa.float64()),
            ]
        )
        return {"entities": pa.list_(entity), "tags": pa.list_(pa.string())}

    def predict(self, finetuned: FinetunedModel, examples: Sequence[Words]) -> Predictions:
        """Find entities."""
        from biphasic.tasks.encoded.entities import predict_entities  # noqa: PLC0415

        return predict_entities(finetuned, examples)
