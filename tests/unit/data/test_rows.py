"""Which rows a step reads: whole documents kept apart, or one text cut at random places."""

import hashlib
import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biphasic.data.packing import lay_out
from biphasic.data.rows import (
    NUM_SPECIAL,
    SHORTEST,
    WINDOW_DOCUMENTS,
    BatchShape,
    Piece,
    RowBatch,
    RowPlan,
    RowReader,
)
from biphasic.errors import ConfigError, DataError
from biphasic.objectives.clm import Clm
from biphasic.objectives.masking import Mlm, Mntp
from biphasic.objectives.supervision import Vocabulary

LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 90), 1, 400).astype(np.int64)
KINDS = ("documents", "random_length")
SIZES = {"documents": [16, 31, 64, 128], "random_length": [24, 31, 64, 500]}
KIND_AND_LEGS = st.sampled_from(KINDS).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.lists(
            st.builds(
                BatchShape,
                max_seqlen=st.sampled_from(SIZES[kind]),
                rows_per_step=st.integers(1, 5),
                num_steps=st.integers(1, 12),
            ),
            min_size=1,
            max_size=4,
        ),
    )
)


def plan_of(shapes, kind="documents", *, data_seed=3, window=16, lengths=LENGTHS):
    return RowPlan(lengths, shapes, data_seed=data_seed, window_documents=window, kind=kind)


def num_steps(shapes):
    return sum(shape.num_steps for shape in shapes)


def counts_of(plan, steps):
    """Count how often each token was read: epoch, document, place."""
    return Counter(
        (piece.epoch, piece.document, place)
        for step in range(steps)
        for row in plan.rows(step)
        for piece in row
        for place in range(piece.start, piece.end)
    )


@settings(max_examples=40)
@given(KIND_AND_LEGS, st.integers(0, 9), st.sampled_from([1, 7, 32, 90, 8192]))
def test_no_token_twice_in_an_epoch_across_legs(kind_and_legs, data_seed, window):
    kind, shapes = kind_and_legs
    plan = plan_of(shapes, kind, data_seed=data_seed, window=window)
    assert set(counts_of(plan, num_steps(shapes)).values()) == {1}


@pytest.mark.parametrize("window", [7, 8192])
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("documents", [64, 16, 128]), ("documents", [16, 400, 16]),
     ("random_length", [64, 24, 128]), ("random_length", [500, 31])],
)  # fmt: skip
def test_every_token_once_in_each_whole_epoch(kind, sizes, window):
    special = NUM_SPECIAL if kind == "random_length" else 0
    total = int((LENGTHS + special).sum())
    shapes = [BatchShape(size, 3, total // (3 * size) // 2 + 5) for size in sizes]
    shapes.append(BatchShape(50, 2, 4 * total // (2 * 50)))  # long enough to end two epochs
    counts = counts_of(plan_of(shapes, kind, window=window), num_steps(shapes))
    assert set(counts.values()) == {1}
    for epoch in (0, 1):
        assert {key[1:] for key in counts if key[0] == epoch} == {
            (document, place)
            for document, length in enumerate(LENGTHS.tolist())
            for place in range(length + special)
        }


@settings(max_examples=40)
@given(KIND_AND_LEGS, st.data())
def test_cold_equals_stepped(kind_and_legs, data):
    kind, shapes = kind_and_legs
    steps, stepped, cold = num_steps(shapes), plan_of(shapes, kind), plan_of(shapes, kind)
    expected = [stepped.rows(step) for step in range(steps)]
    for step in data.draw(st.lists(st.integers(0, steps - 1), min_size=1, max_size=5)):
        assert cold.rows(step) == expected[step]  # in any order, again and again


def test_a_batch_has_the_rows_of_its_step():
    plan = plan_of([BatchShape(64, 3, 5), BatchShape(128, 2, 5)])
    assert [len(plan.rows(step)) for step in range(10)] == [3] * 5 + [2] * 5
    assert [plan.max_seqlen(step) for step in range(10)] == [64] * 5 + [128] * 5
    for step in range(10):
        for row in plan.rows(step):
            filled = sum(piece.end - piece.start + NUM_SPECIAL for piece in row)
            assert filled <= plan.max_seqlen(step)
    for ask in (plan.rows, plan.max_seqlen):
        with pytest.raises(DataError, match="the planned run ends 1 steps earlier"):
            ask(10)


def test_rows_of_random_length_are_full_and_have_two_sequences_of_any_length():
    plan = plan_of([BatchShape(64, 8, 60)], "random_length")
    rows = [row for step in range(60) for row in plan.rows(step)]
    firsts = Counter()
    for row in rows:
        starts = [index for index, piece in enumerate(row) if not piece.continues]
        first, second = (
            sum(piece.end - piece.start for piece in row[start:end])
            for start, end in pairwise([*starts, len(row)])
        )
        assert (starts[0], first + second) == (0, 64)
        firsts[first] += 1
    # 12 to 52, each as likely: 41 lengths in 480 rows.
    assert (min(firsts), max(firsts)) == (SHORTEST, 64 - SHORTEST)
    assert max(firsts.values()) < 4 * len(rows) / 41
    # Documents are joined, and cut anywhere.
    assert any(piece.continues for row in rows for piece in row)
    assert any(piece.start == 1 for row in rows for piece in row)


def test_total_length_and_merged_legs_do_not_change_earlier_rows():
    ten = [plan_of([BatchShape(64, 2, 10)]).rows(step) for step in range(10)]
    for shapes in (
        [BatchShape(64, 2, 400)],
        [BatchShape(64, 2, 4), BatchShape(64, 2, 6)],
        [BatchShape(64, 2, 10), BatchShape(32, 2, 9)],
    ):
        plan = plan_of(shapes)
        assert [plan.rows(step) for step in range(10)] == ten


def test_seed_window_shape_and_kind_determine_rows():
    def rows(max_seqlen=64, kind="documents", **settings):
        plan = plan_of([BatchShape(max_seqlen, 4, 2)], kind, **settings)
        return [plan.rows(step) for step in range(2)]

    assert rows() == rows()
    others = [{"data_seed": 1}, {"window": 32}, {"max_seqlen": 65}, {"kind": "random_length"}]
    assert all(rows() != rows(**other) for other in others)
    random = {"kind": "random_length"}
    assert rows(**random) == rows(**random) != rows(**random, data_seed=4)


def numbers_of(plan, steps):
    return [
        [[(p.epoch, p.document, p.start, p.end) for p in row] for row in plan.rows(step)]
        for step in range(steps)
    ]


def test_known_rows():
    # Golden: a change here needs another ROW_PLAN_VERSION.
    shapes = [BatchShape(12, 2, 2), BatchShape(24, 1, 2)]
    lengths = np.array([5, 9, 3, 20, 7, 4])
    assert numbers_of(plan_of(shapes, data_seed=0, window=4, lengths=lengths), 4) == [
        [[(0, 3, 0, 10)], [(0, 0, 0, 5)]],
        [[(0, 5, 0, 4)], [(0, 3, 10, 20)]],
        [[(1, 5, 0, 4), (0, 2, 0, 3), (1, 2, 0, 3)]],
        [[(0, 1, 0, 9), (0, 4, 0, 7)]],
    ]
    # Documents longer than rows, windows, a change of shape and several epochs.
    shapes = [BatchShape(128, 8, 200), BatchShape(512, 3, 200), BatchShape(128, 8, 900)]
    lengths = 1 + np.arange(3000) ** 2 % 701
    rows = numbers_of(plan_of(shapes, data_seed=7, window=512, lengths=lengths), 1300)
    assert rows[-1][-1][0][0] == 1  # the epoch
    expected = "a08db86505767f65b08c093ce2cb6e0871d30bd37c5c303be76f61b4ba8657d8"
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest() == expected


@pytest.mark.parametrize("max_seqlen", [128, 512])
def test_ordinary_text_fills_98_percent(max_seqlen):
    # Log-normal lengths as in documentation: median 90 tokens, some of thousands.
    draw = np.random.default_rng(max_seqlen)
    lengths = np.clip(draw.lognormal(4.5, 1.1, 3 * WINDOW_DOCUMENTS // 2), 2, 20_000)
    plan = RowPlan(lengths.astype(np.int64), [BatchShape(max_seqlen, 8, 300)], data_seed=0)
    rows = (row for step in range(300) for row in plan.rows(step))
    tokens = sum(p.end - p.start + NUM_SPECIAL for row in rows for p in row)
    assert tokens / (300 * 8 * max_seqlen) >= 0.98


class Documents:
    """Lengths of a hundred million documents, and how many were asked for at once."""

    def __init__(self):
        self.sizes = []

    def __len__(self):
        return 100_000_000

    def __getitem__(self, documents):
        self.sizes.append(len(documents))
        return np.full(len(documents), 30)


def test_memory_is_bounded_by_the_window():
    # A hundred million documents: only windows that are asked for are planned, at once.
    lengths = Documents()
    plan = plan_of([BatchShape(64, 4, 10_000_000)], window=512, lengths=lengths)
    # 2 documents a row, 256 rows a window, 64 steps a window: steps 63 and 64 are in two windows.
    documents = [p.document for step in (63, 64, 65) for row in plan.rows(step) for p in row]
    assert len(set(documents)) == 3 * 4 * 2
    assert lengths.sizes in ([512] * 2, [512] * 3)  # the next one may be planned ahead
    plan.rows(193)
    planned = len(lengths.sizes)
    plan.rows(63)  # is of a window that was given up
    assert lengths.sizes == [512] * (planned + 1)


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [("documents", 2, "max_seqlen 2 .* BOS and EOS"),
     ("random_length", 23, "max_seqlen 23 .* two sequences of 12")],
)  # fmt: skip
def test_rows_without_room_are_refused(kind, size, message):
    with pytest.raises(ConfigError, match=message):
        plan_of([BatchShape(size, 1, 1)], kind)


@pytest.fixture
def read(corpus, tokenizer):
    """Read six batches of a kind."""

    def read(kind, data_seed=0):
        shapes = [BatchShape(48, 4, 6)]
        plan = plan_of(shapes, kind, data_seed=data_seed, lengths=corpus.lengths)
        reader = RowReader(corpus, plan, tokenizer.special_ids)
        return [reader.batch(step) for step in range(6)]

    return read


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_pieces_between_bos_and_eos(read, corpus, tokenizer, kind):
    batches = read(kind)
    for batch in batches:
        flat = batch.packed.input_ids.reshape(-1)
        is_text = np.zeros(flat.size, dtype=bool)
        for piece, (start, end) in zip(batch.pieces, batch.texts.tolist(), strict=True):
            expected = corpus.tokens(piece.document, piece.start, piece.end).tolist()
            assert flat[start:end].tolist() == expected
            assert not {*tokenizer.special_ids.values()} & {*expected}
            is_text[start:end] = True
            if kind == "documents":
                assert (flat[start - 1], flat[end]) == (tokenizer.bos_id, tokenizer.eos_id)
            elif piece.start == 0 and start not in batch.packed.spans[:, 0]:
                assert flat[start - 1] == tokenizer.bos_id
        inside = np.zeros(flat.size, dtype=bool)
        for start, end in batch.packed.spans.tolist():
            inside[start:end] = True
        assert np.array_equal(batch.is_token, inside)
        assert (flat[~inside] == tokenizer.pad_id).all()
        assert {*flat[inside & ~is_text].tolist()} == {tokenizer.bos_id, tokenizer.eos_id}
        if kind == "random_length":
            assert inside.all()
            assert len(batch.packed.spans) == 2 * batch.packed.num_rows
    assert any(piece.start > 0 for batch in batches for piece in batch.pieces)  # parts of long ones


def test_hashes_follow_tokens_and_borders(read):
    batches = read("documents")
    hashes = [batch.sha256() for batch in batches]
    assert hashes == [batch.sha256() for batch in read("documents")]
    assert len(set(hashes)) == 6
    assert hashes[0] != read("documents", data_seed=1)[0].sha256()
    # The same tokens with a document border elsewhere are not the same rows.
    batches[0].packed.cu_seqlens[1] += 1
    assert batches[0].sha256() != hashes[0]


@pytest.fixture
def vocabulary(tokenizer) -> Vocabulary:
    ids = tokenizer.special_ids
    return Vocabulary(size=512, mask_id=ids["mask"], special_ids=frozenset(ids.values()))


def test_a_part_has_the_masks_of_the_whole(read, vocabulary):
    objective = Mlm(objective="mlm", replacement="bert")
    for batch in read("random_length"):
        [whole] = objective.supervise(batch, vocabulary, mask_seed=1)
        parts = [
            objective.supervise(batch.part(start, start + 2), vocabulary, mask_seed=1)[0]
            for start in (0, 2)
        ]
        shown = np.concatenate([part.rows.input_ids for part in parts])
        assert np.array_equal(shown, whole.rows.input_ids)
        labels = batch.packed.input_ids.reshape(-1)[whole.positions]
        assert not vocabulary.special_ids & set(labels.tolist())


def test_no_label_crosses_sequences(read, vocabulary, tokenizer):
    begins_within = 0
    for batch in read("random_length"):
        flat = batch.packed.input_ids.reshape(-1)
        starts, ends = batch.packed.spans.T
        mntp = Mntp(objective="mntp", mlm_probability=1.0)
        for objective in (Clm(objective="clm"), mntp):
            [made] = objective.supervise(batch, vocabulary, mask_seed=0)
            assert not set(made.positions) & set(ends - 1)
            assert np.array_equal(made.labels, flat[made.positions + 1])
            assert objective is mntp or len(made.positions) == flat.size - len(ends)
        begins_within += int((flat[starts] != tokenizer.bos_id).sum())
    assert begins_within > 0  # there, MNTP has nothing that could predict the first token


def batch_of(lengths: list[list[int]], *, row_length: int = 12) -> RowBatch:
    """Lay out rows of sequences of given lengths, in the order of rows."""
    flat = [length for row in lengths for length in row]
    sequences = [np.full(length, 10 + number) for number, length in enumerate(flat)]
    ends = np.cumsum([len(row) for row in lengths]).tolist()
    rows = [range(end - len(row), end) for row, end in zip(lengths, ends, strict=True)]
    packed = lay_out(sequences, rows, row_length=row_length, pad_id=1)
    pieces = tuple(Piece(0, number, 0, length) for number, length in enumerate(flat))
    return RowBatch(packed, pieces, packed.spans + np.array([1, -1]))


ROWS = st.lists(st.lists(st.integers(2, 4), min_size=1, max_size=3), min_size=1, max_size=6)


@given(ROWS, st.data())
def test_a_part_equals_its_rows_alone(rows, data):
    start = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(start + 1, len(rows)))
    whole = batch_of(rows)
    part = whole.part(start, end)
    # The same rows laid out alone, with the sequences numbered as they are in the whole.
    alone = batch_of(rows[start:end])
    skipped = sum(map(len, rows[:start]))
    shifted = np.where(alone.packed.input_ids == 1, 1, alone.packed.input_ids + skipped)
    assert np.array_equal(part.packed.input_ids, shifted)
    for name in ("position_ids", "cu_seqlens", "spans"):
        one, other = getattr(part.packed, name), getattr(alone.packed, name)
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype
    assert np.array_equal(part.is_token, alone.is_token)
    assert part.pieces == whole.pieces[skipped : skipped + len(alone.pieces)]
