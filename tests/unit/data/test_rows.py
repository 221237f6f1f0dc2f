"""Which rows a step reads."""

import hashlib
import json
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biphasic.data.rows import NUM_SPECIAL, WINDOW_DOCUMENTS, BatchShape, Piece, RowPlan, RowReader
from biphasic.errors import ConfigError, DataError

LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 90), 1, 400).astype(np.int64)


def all_pieces(plan: RowPlan, steps: int) -> list[Piece]:
    return [piece for step in range(steps) for row in plan.rows(step) for piece in row]


def covered(pieces: list[Piece]) -> dict[int, dict[int, Counter[int]]]:
    """Count how often each token was read: epoch, document, place."""
    counts: dict[int, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    for piece in pieces:
        counts[piece.epoch][piece.document].update(range(piece.start, piece.end))
    return counts


def assert_each_token_once(pieces: list[Piece], lengths: np.ndarray, *, whole_epochs: int) -> None:
    counts = covered(pieces)
    for documents in counts.values():
        assert all(set(places.values()) == {1} for places in documents.values())
    for epoch in range(whole_epochs):
        assert set(counts[epoch]) == set(range(len(lengths)))
        for document, places in counts[epoch].items():
            assert set(places) == set(range(lengths[document]))


legs_of_any_shape = st.lists(
    st.builds(
        BatchShape,
        max_seqlen=st.sampled_from([16, 31, 64, 128]),
        rows_per_step=st.integers(1, 5),
        num_steps=st.integers(1, 12),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30)
@given(legs_of_any_shape, st.integers(0, 9), st.sampled_from([7, 32, 90, 8192]))
def test_no_token_twice_in_an_epoch_across_legs(shapes, data_seed, window):
    plan = RowPlan(LENGTHS, shapes, data_seed=data_seed, window_documents=window)
    pieces = all_pieces(plan, sum(shape.num_steps for shape in shapes))
    assert_each_token_once(pieces, LENGTHS, whole_epochs=0)


@pytest.mark.parametrize("window", [7, 32, 8192])
@pytest.mark.parametrize("shapes", [[64], [64, 16, 128], [16, 400, 16]])
def test_every_token_once_in_each_whole_epoch(shapes, window):
    total = int(LENGTHS.sum())
    shapes = [BatchShape(shape, 3, total // (3 * shape) // 2 + 5) for shape in shapes]
    shapes.append(BatchShape(50, 2, 6 * total // (2 * 50)))  # long enough to end three epochs
    plan = RowPlan(LENGTHS, shapes, data_seed=4, window_documents=window)
    pieces = all_pieces(plan, sum(shape.num_steps for shape in shapes))
    assert_each_token_once(pieces, LENGTHS, whole_epochs=3)


@settings(max_examples=30)
@given(legs_of_any_shape, st.data())
def test_cold_equals_stepped(shapes, data):
    steps = sum(shape.num_steps for shape in shapes)
    stepped = RowPlan(LENGTHS, shapes, data_seed=3, window_documents=16)
    expected = [stepped.rows(step) for step in range(steps)]
    asked = data.draw(st.lists(st.integers(0, steps - 1), min_size=1, max_size=5))
    cold = RowPlan(LENGTHS, shapes, data_seed=3, window_documents=16)
    for step in asked:  # in any order, again and again
        assert cold.rows(step) == expected[step]


def test_a_batch_has_the_rows_of_its_step():
    shapes = [BatchShape(64, 3, 5), BatchShape(128, 2, 5)]
    plan = RowPlan(LENGTHS, shapes, data_seed=0, window_documents=16)
    assert [len(plan.rows(step)) for step in range(10)] == [3] * 5 + [2] * 5
    assert [plan.max_seqlen(step) for step in range(10)] == [64] * 5 + [128] * 5
    for step in range(10):
        room = plan.max_seqlen(step)
        for row in plan.rows(step):
            assert sum(piece.end - piece.start + NUM_SPECIAL for piece in row) <= room
    for ask in (plan.rows, plan.max_seqlen):
        with pytest.raises(DataError, match="the planned run ends 1 steps earlier"):
            ask(10)


def test_total_length_and_merged_legs_do_not_change_earlier_rows():
    short = RowPlan(LENGTHS, [BatchShape(64, 2, 10)], data_seed=1, window_documents=16)
    long = RowPlan(LENGTHS, [BatchShape(64, 2, 400)], data_seed=1, window_documents=16)
    phases = RowPlan(
        LENGTHS, [BatchShape(64, 2, 4), BatchShape(64, 2, 6)], data_seed=1, window_documents=16
    )
    then = RowPlan(
        LENGTHS, [BatchShape(64, 2, 10), BatchShape(32, 2, 9)], data_seed=1, window_documents=16
    )
    expected = [short.rows(step) for step in range(10)]
    for plan in (long, phases, then):
        assert [plan.rows(step) for step in range(10)] == expected


def test_seed_window_and_shape_determine_rows():
    def rows(*, data_seed: int = 0, window: int = 16, max_seqlen: int = 64) -> list:
        shape = BatchShape(max_seqlen, 4, 2)
        plan = RowPlan(LENGTHS, [shape], data_seed=data_seed, window_documents=window)
        return [plan.rows(step) for step in range(2)]

    assert rows() == rows()
    assert rows() != rows(data_seed=1)
    assert rows() != rows(window=32)
    assert rows() != rows(max_seqlen=65)


def test_known_rows():
    # Golden: a change here needs another ROW_PLAN_VERSION.
    lengths = np.array([5, 9, 3, 20, 7, 4])
    shapes = [BatchShape(12, 2, 2), BatchShape(24, 1, 2)]
    plan = RowPlan(lengths, shapes, data_seed=0, window_documents=4)
    rows = [
        [[(p.epoch, p.document, p.start, p.end) for p in row] for row in plan.rows(step)]
        for step in range(4)
    ]
    assert rows == [
        [[(0, 3, 0, 10)], [(0, 0, 0, 5)]],
        [[(0, 5, 0, 4)], [(0, 3, 10, 20)]],
        [[(1, 5, 0, 4), (0, 2, 0, 3), (1, 2, 0, 3)]],
        [[(0, 1, 0, 9), (0, 4, 0, 7)]],
    ]


def test_known_rows_of_a_longer_run():
    # Golden as above: documents longer than rows, windows, a change of shape and several epochs.
    lengths = 1 + np.arange(3000) ** 2 % 701
    shapes = [BatchShape(128, 8, 200), BatchShape(512, 3, 200), BatchShape(128, 8, 900)]
    plan = RowPlan(lengths, shapes, data_seed=7, window_documents=512)
    rows = [
        [[(p.epoch, p.document, p.start, p.end) for p in row] for row in plan.rows(step)]
        for step in range(1300)
    ]
    assert rows[-1][-1][0][0] == 1  # the epoch
    expected = "a08db86505767f65b08c093ce2cb6e0871d30bd37c5c303be76f61b4ba8657d8"
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest() == expected


@pytest.mark.parametrize("max_seqlen", [128, 256, 512])
def test_ordinary_text_fills_98_percent(max_seqlen):
    # Log-normal lengths as in documentation: median 90 tokens, some of thousands.
    draw = np.random.default_rng(max_seqlen)
    lengths = np.clip(draw.lognormal(4.5, 1.1, 3 * WINDOW_DOCUMENTS // 2), 2, 20_000)
    lengths = lengths.astype(np.int64)
    plan = RowPlan(lengths, [BatchShape(max_seqlen, 8, 400)], data_seed=0)
    tokens = sum(p.end - p.start + NUM_SPECIAL for p in all_pieces(plan, 400))
    assert tokens / (400 * 8 * max_seqlen) >= 0.98


def test_memory_is_bounded_by_the_window(monkeypatch):
    # A hundred million documents: only windows that are asked for are planned.
    lengths = np.broadcast_to(np.int64(30), 100_000_000)
    sizes = []
    from biphasic.data import rows as module

    original = module.best_fit

    def spy(items, *, capacity):
        sizes.append(len(items))
        return original(items, capacity=capacity)

    monkeypatch.setattr(module, "best_fit", spy)
    plan = RowPlan(lengths, [BatchShape(64, 4, 10_000_000)], data_seed=0, window_documents=512)
    # 2 documents a row, 256 rows a window, 64 steps a window: steps 63 and 64 are in two windows.
    documents = [p.document for step in (63, 64, 65) for row in plan.rows(step) for p in row]
    assert len(set(documents)) == 3 * 4 * 2
    assert sizes in ([512, 512], [512, 512, 512])  # the next one may be planned ahead


def test_no_room_for_text_is_refused():
    with pytest.raises(ConfigError, match=r"max_seqlen 2 .* BOS and EOS"):
        RowPlan(LENGTHS, [BatchShape(2, 1, 1)], data_seed=0)


@pytest.fixture
def reader(corpus, tokenizer) -> RowReader:
    plan = RowPlan(corpus.lengths, [BatchShape(48, 4, 6)], data_seed=0)
    return RowReader(corpus, plan, tokenizer.special_ids)


def test_every_piece_begins_with_bos_and_ends_with_eos(reader, corpus, tokenizer):
    specials = set(tokenizer.special_ids.values())
    cut = 0
    for step in range(6):
        batch = reader.batch(step)
        flat = batch.packed.input_ids.reshape(-1)
        assert len(batch.pieces) == len(batch.packed.spans)
        for piece, (start, end) in zip(batch.pieces, batch.packed.spans.tolist(), strict=True):
            assert flat[start] == tokenizer.bos_id
            assert flat[end - 1] == tokenizer.eos_id
            inside = flat[start + 1 : end - 1].tolist()
            assert inside == corpus.tokens(piece.document, piece.start, piece.end).tolist()
            assert not specials & set(inside)
            cut += piece.start > 0
        is_padding = np.ones(flat.size, dtype=bool)
        for start, end in batch.packed.spans.tolist():
            is_padding[start:end] = False
        assert np.array_equal(batch.is_token, ~is_padding)
        assert (flat[is_padding] == tokenizer.pad_id).all()
    assert cut > 0  # chunks of long documents were among them


def test_hashes_of_different_rows_differ(reader, corpus, tokenizer):
    again = RowReader(
        corpus, RowPlan(corpus.lengths, [BatchShape(48, 4, 6)], data_seed=0), tokenizer.special_ids
    )
    other = RowReader(
        corpus, RowPlan(corpus.lengths, [BatchShape(48, 4, 6)], data_seed=1), tokenizer.special_ids
    )
    hashes = [reader.batch(step).sha256() for step in range(6)]
    assert hashes == [again.batch(step).sha256() for step in range(6)]
    assert len(set(hashes)) == 6
    assert hashes[0] != other.batch(0).sha256()


def test_hash_sees_borders(reader):
    # The same tokens with a document border elsewhere are not the same rows.
    batch = reader.batch(0)
    before = batch.sha256()
    batch.packed.cu_seqlens[1] += 1
    assert batch.sha256() != before
