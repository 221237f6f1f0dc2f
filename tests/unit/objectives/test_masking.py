"""How much is masked, in which units, and what is shown instead; shared by MLM and MNTP."""

import re
import textwrap
from functools import cache
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_rows import (
    BOS,
    EOS,
    MASK,
    PAD,
    VOCABULARY,
    batch_of,
    by_token,
    phase_refusal,
    supervise,
)

from biphasic.data.packing import lay_out
from biphasic.data.rows import Piece, RowBatch
from biphasic.data.tokens.tokenizer import TextTokenizer, train_tokenizer
from biphasic.errors import ConfigError
from biphasic.objectives.masking import Diffusion, Mlm, Mntp, select, span_lengths
from biphasic.objectives.supervision import Vocabulary, spellings_of, word_starts

TEXTS = (
    "Größere Übungen: naïve façades, 漢字とカタカナ, 👨‍👩‍👧 and 🎉 (or हिन्दी)! ",
    (re.__doc__ or "") + (textwrap.fill.__doc__ or ""),
)
SELECTIONS = ["token", "word", "span"]


@cache
def tokenizer() -> TextTokenizer:
    """A byte-level BPE with few merges: most words take several tokens."""
    trained = train_tokenizer([TEXTS[1]], vocab_size=300)
    assert trained.special_ids == {"bos": BOS, "eos": EOS, "pad": PAD, "mask": MASK}
    return trained


@cache
def vocabulary() -> Vocabulary:
    own = tokenizer()
    return Vocabulary(own.vocab_size, own.mask_id, frozenset(own.special_ids.values()), own)


@cache
def all_tokens() -> np.ndarray:
    return np.array(tokenizer().encode("".join(TEXTS) * 20))


def text_batch(rows: list[list[Piece]], *, row_length: int) -> RowBatch:
    """Lay out stretches of one text; each document begins 13 tokens after the one before."""

    def tokens(piece: Piece) -> np.ndarray:
        return all_tokens()[piece.document * 13 :][piece.start : piece.end]

    return batch_of(rows, row_length=row_length, tokens=tokens)


@cache
def long_batch() -> RowBatch:
    return text_batch([[Piece(0, d, 0, 300)] for d in range(200)], row_length=302)


def mlm(**options: object) -> Mlm:
    return Mlm.model_validate({"objective": "mlm", **options})


def words_of(tokens: np.ndarray) -> list[list[int]]:
    """Return the places of each word's tokens in a piece."""
    starts = word_starts(tokens, spellings_of(tokenizer()))
    starts[:1] = True
    numbers = np.cumsum(starts).tolist()
    return [list(group) for _, group in groupby(range(len(tokens)), key=numbers.__getitem__)]


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("probability", [0.15, 0.4])
def test_the_expected_share_is_the_probability(selection, probability):
    # 200 pieces under 5 seeds: the mean of 1,000 shares, which deviates by what they vary.
    phase = mlm(selection=selection, mlm_probability=probability)
    shares = []
    for seed in range(5):
        found = supervise(phase, long_batch(), vocabulary(), mask_seed=seed)
        rows = found.positions // long_batch().packed.row_length
        shares += (np.bincount(rows, minlength=200) / 300).tolist()
    error = np.std(shares) / len(shares) ** 0.5
    assert error < 0.01
    assert abs(np.mean(shares) - probability) < 4 * error


@pytest.mark.parametrize("selection", SELECTIONS)
def test_each_place_has_the_same_chance(selection):
    # No token is favoured for its word's length, nor for its place in the piece.
    phase = mlm(selection=selection)
    batch = text_batch([[Piece(e, 0, 0, 120)] for e in range(600)], row_length=122)
    found = supervise(phase, batch, vocabulary(), mask_seed=0)
    chances = np.bincount(found.positions % 122, minlength=122)[1:121] / 600
    # 120 shares of 600 draws at 0.4: each deviates by 0.02.
    assert np.abs(chances - 0.4).max() < 0.09
    assert abs(chances[:20].mean() - chances[-20:].mean()) < 0.05


def test_no_character_is_half_hidden():
    # Text of characters of two to four bytes, each byte a token: what remains must be UTF-8.
    text = "ßÜ漢字🎉é한" * 9
    ids = np.array(tokenizer().encode(text))
    assert len(ids) == len(text.encode())
    batch = batch_of([[Piece(0, 0, 0, len(ids))]], row_length=512, tokens=lambda _: ids)
    spelled = spellings_of(tokenizer())
    for selection in ("word", "span"):
        for seed in range(5):
            phase = mlm(selection=selection, replacement="bert", mlm_probability=0.5)
            found = supervise(phase, batch, vocabulary(), mask_seed=seed)
            left = np.setdiff1d(np.arange(1, len(ids) + 1), found.positions) - 1
            content = [
                spelled.content[spelled.borders[each] : spelled.borders[each + 1]].tobytes()
                for each in ids[left].tolist()
            ]
            assert set(b"".join(content).decode()) <= set(text)  # strict


def test_spans_are_of_whole_words_and_longer():
    runs = {}
    for name in ("word", "span"):
        phase = mlm(selection=name, mlm_probability=0.05)
        found = supervise(phase, long_batch(), vocabulary(), mask_seed=0)
        selected = np.zeros(long_batch().packed.input_ids.size, dtype=bool)
        selected[found.positions] = True
        lengths = []
        for start, end in long_batch().packed.spans.tolist():
            inner = selected[start + 1 : end - 1]
            words = words_of(long_batch().packed.input_ids.reshape(-1)[start + 1 : end - 1])
            assert max(map(len, words)) > 2
            for word in words:
                assert len(set(inner[word].tolist())) == 1
            taken = [bool(inner[word[0]]) for word in words]
            lengths += [len(list(group)) for is_taken, group in groupby(taken) if is_taken]
        runs[name] = np.mean(lengths)
    # At 5 % neighbours rarely meet: runs of words are 1 / 0.95 long, of spans about 3.8 / 0.95,
    # less what the ends of the pieces cut off.
    assert abs(runs["word"] - 1 / 0.95) < 0.05
    assert 3.3 < runs["span"] < 4.3


def test_lengths_of_spans_are_spanberts():
    draws = (np.arange(100_000) + 0.5) / 100_000
    lengths = span_lengths(draws)
    chances = np.array([0.2 * 0.8 ** (k - 1) for k in range(1, 11)])
    expected = chances / chances.sum()
    assert np.allclose(np.bincount(lengths)[1:] / 100_000, expected, atol=2e-5)
    # "This yields a mean span length of 3.8", section 3.1 of the paper.
    assert abs(lengths.mean() - 3.8) < 0.01


PIECES = [Piece(0, 3, 0, 29), Piece(0, 4, 0, 30), Piece(0, 4, 30, 55), Piece(1, 3, 0, 29)]


@settings(max_examples=20)
@given(
    st.permutations(PIECES),
    st.integers(1, 3),
    st.integers(130, 150),
    st.sampled_from(SELECTIONS),
    st.sampled_from(["mask", "bert"]),
)
def test_masks_do_not_depend_on_row_place_or_company(pieces, split, length, selection, replacement):
    phase = mlm(selection=selection, replacement=replacement)
    batch = text_batch([pieces[:split], pieces[split:]], row_length=length)
    together = by_token(batch, supervise(phase, batch, vocabulary(), mask_seed=2))
    apart = {}
    for piece in PIECES:
        alone = text_batch([[piece]], row_length=40)
        apart.update(by_token(alone, supervise(phase, alone, vocabulary(), mask_seed=2)))
    assert together == apart


@given(st.sampled_from(SELECTIONS), st.floats(0.1, 0.5), st.floats(0.5, 1.0))
def test_a_lower_rate_selects_a_subset(selection, low, high):
    batch = text_batch([[Piece(0, 0, 0, 200)]], row_length=202)
    fewer, more = (
        select(batch, vocabulary(), selection,
               mlm_probability=rate, mask_seed=0)[0]
        for rate in (low, high)
    )  # fmt: skip
    assert not (fewer & ~more).any()


@pytest.mark.parametrize("selection", SELECTIONS)
def test_special_tokens_are_never_selected(selection):
    batch = text_batch([PIECES[:2], PIECES[2:]], row_length=100)
    found = supervise(
        mlm(selection=selection, mlm_probability=1.0), batch, vocabulary(), mask_seed=0
    )
    assert not np.isin(found.labels, [BOS, EOS, PAD, MASK]).any()
    assert len(found.labels) == sum(piece.end - piece.start for piece in PIECES)


def test_known_words_and_spans():
    # Golden: a change here needs another NUMERICS_VERSION.
    own = train_tokenizer(["the rows of the array"] * 3, vocab_size=264)
    known = Vocabulary(own.vocab_size, own.mask_id, frozenset(own.special_ids.values()), own)
    ids = np.array(own.encode("the rows, of 3 arrays: é (and 🎉) the"))
    batch = batch_of([[Piece(0, 0, 0, len(ids))]], row_length=64, tokens=lambda _: ids)
    golden = {
        "word": [1, 8, 9, 10, 11, 12, 18, 22, 23],
        "span": [1, 2, 3, 4, 5, 6],
    }
    for selection, positions in golden.items():
        found = supervise(mlm(selection=selection), batch, known, mask_seed=0)
        assert found.positions.tolist() == positions


def test_shares_of_replacement():
    phase = mlm(replacement="bert", mlm_probability=1.0)
    batch = batch_of([[Piece(0, d, 0, 100)] for d in range(200)], row_length=104)
    found = supervise(phase, batch, VOCABULARY, mask_seed=0)
    shown = found.rows.input_ids.reshape(-1)[found.positions]
    hidden, kept = shown == MASK, shown == found.labels
    # One random token in 316 is the right one.
    for is_so, share in ((hidden, 0.8), (kept, 0.1 + 0.1 / 316)):
        # Four standard deviations of a share of 20,000.
        assert abs(is_so.mean() - share) <= 4 * (share * (1 - share) / 20_000) ** 0.5
    drawn = shown[~hidden & ~kept]
    assert not np.isin(shown[~hidden], [BOS, EOS, PAD, MASK]).any()
    assert drawn.max() < VOCABULARY.size
    # About 2,000 draws of 316 tokens leave none of the thirty-two tenths of the range empty.
    assert len(np.unique(drawn // 10)) == 32


@pytest.mark.parametrize("selection", ["word", "span"])
def test_a_unit_is_hidden_randomised_or_kept_as_one(selection):
    phase = mlm(selection=selection, replacement="bert", mlm_probability=0.3)
    found = supervise(phase, long_batch(), vocabulary(), mask_seed=1)
    shown = found.rows.input_ids.reshape(-1)
    selected = np.zeros(shown.size, dtype=bool)
    selected[found.positions] = True
    original = long_batch().packed.input_ids.reshape(-1)
    hidden = kept = total = 0
    for start, end in long_batch().packed.spans.tolist():
        for word in words_of(original[start + 1 : end - 1]):
            places = start + 1 + np.array(word)
            if selected[places].all():
                is_hidden = shown[places] == MASK
                assert is_hidden.all() or not is_hidden.any()
                hidden, total = hidden + int(is_hidden[0]), total + 1
                kept += int((shown[places] == original[places]).all())
    # About 6,000 words, in as few as 1,600 units: a share deviates by up to 0.01.
    assert total > 4000
    assert abs(hidden / total - 0.8) < 0.04
    assert abs(kept / total - 0.1) < 0.04


def test_the_rate_moves_linearly_over_the_phase():
    phase = mlm(mlm_probability=0.3, final_mlm_probability=0.15)
    rates = [phase.at(step, num_steps=4).mlm_probability for step in range(4)]
    assert rates[0] == 0.3
    assert rates[-1] == 0.15
    assert np.allclose(rates, [0.3, 0.25, 0.2, 0.15])
    assert phase.at(0, num_steps=1).mlm_probability == 0.3
    rising = mlm(mlm_probability=0.15, final_mlm_probability=0.3)
    assert np.allclose(
        [rising.at(s, num_steps=3).mlm_probability for s in range(3)], [0.15, 0.225, 0.3]
    )


def test_a_scheduled_step_is_one_at_its_rate():
    phase = mlm(mlm_probability=0.3, final_mlm_probability=0.1, selection="word")
    concrete = phase.at(1, num_steps=3)
    plain = mlm(mlm_probability=concrete.mlm_probability, selection="word")
    assert concrete.determinants(0) == plain.determinants(0)
    assert "final_mlm_probability" not in concrete.determinants(0)
    batch = text_batch([PIECES], row_length=130)
    one, other = (supervise(each, batch, vocabulary(), mask_seed=0) for each in (concrete, plain))
    assert np.array_equal(one.positions, other.positions)
    with pytest.raises(RuntimeError, match="call `at` first"):
        phase.determinants(0)
    with pytest.raises(RuntimeError, match="call `at` first"):
        phase.supervise(batch, vocabulary(), mask_seed=0)
    constant = mlm()
    assert constant.at(5, num_steps=9) is constant


def test_determinants_have_all_settings_that_affect_results():
    base = {"name": "mlm", "mlm_probability": 0.4, "replacement": "mask", "mask_seed": 0}
    spanbert = {"mean_words": 5.0, "longest_words": 10}
    assert mlm().determinants(0) == mlm(selection="token").determinants(0) == base
    assert mlm().determinants(1) == {**base, "mask_seed": 1}
    assert mlm(mlm_probability=0.3).determinants(0) == {**base, "mlm_probability": 0.3}
    assert mlm(selection="word").determinants(0) == {**base, "selection": "word"}
    assert mlm(selection="span").determinants(0) == {**base, "selection": spanbert}
    assert mlm(replacement="bert").determinants(0) == {**base, "replacement": "bert"}


def test_mntp_predicts_the_same_tokens_one_place_before():
    batch = text_batch([PIECES[:2], PIECES[2:]], row_length=100)
    options = {"selection": "word", "replacement": "bert", "mlm_probability": 0.6}
    masked = supervise(mlm(**options), batch, vocabulary(), mask_seed=4)
    shifted = supervise(
        Mntp.model_validate({"objective": "mntp", **options}), batch, vocabulary(), mask_seed=4
    )
    assert np.array_equal(shifted.positions, masked.positions - 1)
    assert np.array_equal(shifted.labels, masked.labels)
    assert np.array_equal(shifted.rows.input_ids, masked.rows.input_ids)
    assert not shifted.causal


def test_mntp_stays_within_the_sequence():
    batch = batch_of([[Piece(0, 0, 0, 2), Piece(0, 1, 0, 1)]], row_length=8)
    # BOS 4 5 EOS BOS 11 EOS PAD, everything masked.
    mntp = Mntp(objective="mntp", mlm_probability=1.0)
    found = supervise(mntp, batch, VOCABULARY, mask_seed=0)
    assert found.rows.input_ids.tolist() == [[BOS, MASK, MASK, EOS, BOS, MASK, EOS, PAD]]
    assert found.positions.tolist() == [0, 1, 4]
    assert found.labels.tolist() == [4, 5, 11]
    assert mntp.directions == {False}
    assert mntp.determinants(7) == {
        "name": "mntp",
        "mlm_probability": 1.0,
        "replacement": "mask",
        "mask_seed": 7,
    }


def test_mntp_predicts_no_first_token_of_a_sequence_that_begins_within_a_document():
    sequences = [np.array([4, 5, 6]), np.array([BOS, 7, EOS])]
    packed = lay_out(sequences, [range(2)], row_length=6, pad_id=PAD)
    texts = np.array([[0, 3], [4, 5]])
    batch = RowBatch(packed, (Piece(0, 0, 5, 8), Piece(0, 1, 0, 1)), texts)
    found = supervise(Mntp(objective="mntp", mlm_probability=1.0), batch, VOCABULARY, mask_seed=0)
    assert found.rows.input_ids.tolist() == [[MASK, MASK, MASK, BOS, MASK, EOS]]
    assert found.positions.tolist() == [0, 1, 3]
    assert found.labels.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    "rare",
    [
        Mlm(objective="mlm", mlm_probability=1e-9),
        Mlm(objective="mlm", mlm_probability=1e-9, replacement="bert"),
        Mntp(objective="mntp", mlm_probability=1e-9),
        Diffusion(objective="diffusion", least_rate=1e-3),
    ],
    ids=["mlm", "replaced", "mntp", "diffusion"],
)
def test_a_batch_without_a_masked_token_is_shown_as_it_is(rare):
    batch = batch_of([[Piece(0, 0, 0, 1)]], row_length=8)
    seeds = (supervise(rare, batch, VOCABULARY, mask_seed=seed) for seed in range(1000))
    found = next(part for part in seeds if not len(part.labels))
    assert np.array_equal(found.rows.input_ids, batch.packed.input_ids)
    assert (found.positions.dtype, len(found.positions)) == (np.int64, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": "wrd"}, "phases.0.selection: unknown value 'wrd' (did you mean 'word'?)"),
        (
            {"final_mlm_probability": 0},
            "phases.0.final_mlm_probability: input should be greater than 0 (got 0)",
        ),
    ],
)
@pytest.mark.parametrize("objective", ["mlm", "mntp"])
def test_nonsense_is_refused(objective, options, message):
    assert phase_refusal(objective=objective, **options) == message


def test_words_need_a_tokenizer_that_shows_them():
    mlm().check_vocabulary(VOCABULARY)
    mlm(selection="word").check_vocabulary(vocabulary())
    with pytest.raises(ConfigError, match=r"selection: .* need the tokenizer"):
        mlm(selection="span").check_vocabulary(VOCABULARY)
