"""Rows of one text, cut at random places: the study's."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biphasic.data.rows import NUM_SPECIAL, SHORTEST, BatchShape, Piece, RowPlan, RowReader
from biphasic.errors import ConfigError
from biphasic.objectives.clm import Clm
from biphasic.objectives.masking import Mlm, Mntp
from biphasic.objectives.supervision import Vocabulary

LENGTHS = np.clip(np.random.default_rng(0).lognormal(3, 1, 90), 1, 400).astype(np.int64)
LEGS = st.lists(
    st.builds(
        BatchShape,
        max_seqlen=st.sampled_from([24, 31, 64, 500]),
        rows_per_step=st.integers(1, 5),
        num_steps=st.integers(1, 12),
    ),
    min_size=1,
    max_size=4,
)


def plan_of(shapes, *, data_seed=3, window=16, lengths=LENGTHS):
    return RowPlan(
        lengths, shapes, data_seed=data_seed, window_documents=window, kind="random_length"
    )


def counts_of(plan, steps):
    """Count how often each token of a document, BOS and EOS included, was read."""
    return Counter(
        (piece.epoch, piece.document, place)
        for step in range(steps)
        for row in plan.rows(step)
        for piece in row
        for place in range(piece.start, piece.end)
    )


def sequences(row: list[Piece]) -> list[int]:
    """Return the lengths of the sequences of a row."""
    starts = [index for index, piece in enumerate(row) if not piece.continues]
    assert starts[0] == 0
    return [
        sum(piece.end - piece.start for piece in row[start:end])
        for start, end in pairwise([*starts, len(row)])
    ]


@settings(max_examples=15)
@given(LEGS, st.integers(0, 9), st.sampled_from([1, 7, 90]))
def test_no_token_twice_in_an_epoch_across_legs(shapes, data_seed, window):
    plan = plan_of(shapes, data_seed=data_seed, window=window)
    counts = counts_of(plan, sum(shape.num_steps for shape in shapes))
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("window", [1, 7, 8192])
@pytest.mark.parametrize("sizes", [[64], [64, 24, 128], [500, 31]])
def test_every_token_once_in_each_whole_epoch(sizes, window):
    total = int((LENGTHS + NUM_SPECIAL).sum())
    shapes = [BatchShape(size, 3, total // (3 * size) // 2 + 5) for size in sizes]
    shapes.append(BatchShape(50, 2, 4 * total // (2 * 50)))
    steps = sum(shape.num_steps for shape in shapes)
    counts = counts_of(plan_of(shapes, window=window), steps)
    assert set(counts.values()) == {1}
    for epoch in (0, 1):
        read = {key[1:] for key in counts if key[0] == epoch}
        assert read == {
            (document, place)
            for document, length in enumerate(LENGTHS.tolist())
            for place in range(length + NUM_SPECIAL)
        }


@settings(max_examples=15)
@given(LEGS, st.data())
def test_cold_equals_stepped(shapes, data):
    steps = sum(shape.num_steps for shape in shapes)
    stepped = plan_of(shapes)
    expected = [stepped.rows(step) for step in range(steps)]
    cold = plan_of(shapes)
    for step in data.draw(st.lists(st.integers(0, steps - 1), min_size=1, max_size=5)):
        assert cold.rows(step) == expected[step]


def test_rows_are_full_and_have_two_sequences_of_any_length():
    plan = plan_of([BatchShape(64, 8, 60)])
    rows = [row for step in range(60) for row in plan.rows(step)]
    lengths = [sequences(row) for row in rows]
    assert {(len(each), sum(each)) for each in lengths} == {(2, 64)}
    # 12 to 52, each as likely: 41 lengths in 480 rows.
    firsts = Counter(first for first, _ in lengths)
    assert (min(firsts), max(firsts)) == (SHORTEST, 64 - SHORTEST)
    assert max(firsts.values()) < 4 * len(rows) / 41
    # Documents are joined, and cut anywhere.
    assert any(piece.continues for row in rows for piece in row)
    assert any(piece.start == 1 for row in rows for piece in row)


def test_seed_and_kind_determine_rows():
    shapes = [BatchShape(64, 2, 3)]
    assert plan_of(shapes).rows(0) == plan_of(shapes).rows(0)
    assert plan_of(shapes).rows(0) != plan_of(shapes, data_seed=4).rows(0)
    assert plan_of(shapes).rows(0) != RowPlan(LENGTHS, shapes, data_seed=3).rows(0)


def test_short_rows_are_refused():
    with pytest.raises(ConfigError, match=r"max_seqlen 23 .* two sequences of 12"):
        plan_of([BatchShape(23, 1, 1)])


@pytest.fixture
def batches(corpus, tokenizer):
    plan = plan_of([BatchShape(48, 4, 6)], lengths=corpus.lengths)
    reader = RowReader(corpus, plan, tokenizer.special_ids)
    return [reader.batch(step) for step in range(6)]


@pytest.fixture
def vocabulary(tokenizer) -> Vocabulary:
    ids = tokenizer.special_ids
    return Vocabulary(size=512, mask_id=ids["mask"], special_ids=frozenset(ids.values()))


def test_tokens_are_those_of_the_pieces_and_the_rest_is_bos_and_eos(batches, corpus, tokenizer):
    for batch in batches:
        flat = batch.packed.input_ids.reshape(-1)
        is_text = np.zeros(flat.size, dtype=bool)
        for piece, (start, end) in zip(batch.pieces, batch.texts.tolist(), strict=True):
            expected = corpus.tokens(piece.document, piece.start, piece.end)
            assert flat[start:end].tolist() == expected.tolist()
            is_text[start:end] = True
            if piece.start == 0 and start not in batch.packed.spans[:, 0]:
                assert flat[start - 1] == tokenizer.bos_id
        assert set(flat[~is_text].tolist()) == {tokenizer.bos_id, tokenizer.eos_id}
        assert batch.is_token.all()
        assert len(batch.packed.spans) == 2 * batch.packed.num_rows


def test_a_part_has_the_masks_of_the_whole(batches, vocabulary):
    objective = Mlm(objective="mlm", replacement="bert")
    for batch in batches:
        [whole] = objective.supervise(batch, vocabulary, mask_seed=1)
        parts = [
            objective.supervise(batch.part(start, start + 2), vocabulary, mask_seed=1)[0]
            for start in (0, 2)
        ]
        shown = np.concatenate([part.rows.input_ids for part in parts])
        assert np.array_equal(shown, whole.rows.input_ids)
        labels = batch.packed.input_ids.reshape(-1)[whole.positions]
        assert not vocabulary.special_ids & set(labels.tolist())


def test_no_label_crosses_sequences(batches, vocabulary, tokenizer):
    begins_within = 0
    for batch in batches:
        flat = batch.packed.input_ids.reshape(-1)
        starts, ends = batch.packed.spans.T
        [causal] = Clm(objective="clm").supervise(batch, vocabulary, mask_seed=0)
        assert not set(causal.positions) & set(ends - 1)
        assert len(causal.positions) == flat.size - len(ends)
        assert np.array_equal(causal.labels, flat[causal.positions + 1])
        [mntp] = Mntp(objective="mntp", mlm_probability=1.0).supervise(
            batch, vocabulary, mask_seed=0
        )
        assert not set(mntp.positions) & set(ends - 1)
        assert np.array_equal(mntp.labels, flat[mntp.positions + 1])
        begins_within += int((flat[starts] != tokenizer.bos_id).sum())
    assert begins_within > 0  # there, MNTP has nothing that could predict the first token
