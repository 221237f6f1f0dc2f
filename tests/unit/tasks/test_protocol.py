from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import get_linear_schedule_with_warmup

from biphasic.files import digest
from biphasic.objectives.lr import check_learning_rate, learning_rate
from biphasic.tasks.finetune import batch_indices, read_items
from biphasic.tasks.kinds.registry import KINDS
from biphasic.tasks.protocol import FinetuneProtocol
from biphasic.training.optimizers.adamw import AdamW


def test_defaults_are_the_studys():
    protocol = FinetuneProtocol()
    assert (protocol.max_steps, protocol.max_epochs, protocol.batch_size) == (1000, 1, 32)
    optimizer = protocol.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.95, 1e-5)
    assert (optimizer.weight_decay, optimizer.max_gradient_norm) == (0.1, 1.0)
    assert protocol.warmup_fraction == 0.1
    assert (protocol.max_seqlen, protocol.precision) == (2048, "fp32")
    with pytest.raises(ValidationError):
        FinetuneProtocol(max_step=3)


@pytest.mark.parametrize(("max_positions", "longest"), [(2048, 2028), (512, 507), (8192, 8110)])
def test_the_studys_way(max_positions, longest):
    protocol = FinetuneProtocol(**FinetuneProtocol.paper(max_positions))
    assert protocol.max_seqlen == longest
    assert (protocol.precision, protocol.retrieval_corpus) == ("paper", "judged")
    assert protocol.head == "dense"
    assert protocol.num_steps(320_000) == 1000


def test_a_fine_tuning_is_named_by_every_constant_but_later_ones_at_their_defaults():
    plain = FinetuneProtocol()
    named = set(plain.determinants(is_pooled=True))
    unnamed = {"attention", "batching", "head", "optimizer", "reading"}
    unnamed |= {"train_examples", "pooling", "train", "layer", "lora"}
    assert set(FinetuneProtocol.model_fields) - named == unnamed
    same = FinetuneProtocol(batching="packed", head="linear")
    assert plain.determinants(is_pooled=True) == same.determinants(is_pooled=True)
    others = {"batching": "padded", "attention": "causal", "head": "dense", "pooling": "first"}
    for name, other in others.items():
        assert FinetuneProtocol(**{name: other}).determinants(is_pooled=True)[name] == other
    for name, other in {"max_steps": 7, "precision": "paper", "max_answer_tokens": 3}.items():
        assert FinetuneProtocol(**{name: other}).determinants(is_pooled=True) != plain.determinants(
            is_pooled=True
        )


def test_a_fine_tuning_is_named_by_every_setting_of_its_optimizer():
    plain = FinetuneProtocol().determinants(is_pooled=True)
    for name in set(AdamW.model_fields) - {"name"}:
        other = FinetuneProtocol(optimizer={name: 0.5}).determinants(is_pooled=True)
        assert other != plain, name


def test_lora_names_a_fine_tuning_as_resolved():
    one, same, other = (
        FinetuneProtocol(lora=lora).determinants(is_pooled=True)
        for lora in ({"rank": 4}, {"rank": 4, "alpha": 8}, {"rank": 4, "alpha": 4})
    )
    assert one == same != other
    assert "lora" not in FinetuneProtocol().model_dump(mode="json")
    for changes in ({"train": "head"}, {"precision": "paper"}):
        with pytest.raises(ValidationError, match="lora needs train: all"):
            FinetuneProtocol(lora={"rank": 4}, **changes)


def test_identities_of_earlier_fine_tunings_stay():
    changes = {"weight_decay": 0, "beta2": 0.99, "max_gradient_norm": None}
    other = FinetuneProtocol(optimizer=changes, head="dense")
    identities = [digest(p.determinants(is_pooled=True)) for p in (FinetuneProtocol(), other)]
    assert [identity[:12] for identity in identities] == ["549a55c2ba33", "cbdb543c0460"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_a_kind_does_not_have_names_nothing(kind):
    dense = FinetuneProtocol(head="dense")
    given = {"is_pooled": KINDS[kind].facts.is_pooled}
    is_named = dense.determinants(**given) != FinetuneProtocol().determinants(**given)
    assert is_named == dense.has_dense_head(**given) == (kind in {"sc", "ml", "sr"})


def test_scores_of_other_tasks_are_named_by_what_scoring_reads():
    plain = FinetuneProtocol()
    transferred = {"max_seqlen": 2048, "retrieval_corpus": "full"}
    assert plain.scoring_determinants(is_zero_shot=False) == transferred
    zero_shot = {**transferred, "precision": "fp32"}
    assert plain.scoring_determinants(is_zero_shot=True) == zero_shot
    training = FinetuneProtocol(max_steps=7, batch_size=2)
    assert training.scoring_determinants(is_zero_shot=True) == zero_shot
    other = FinetuneProtocol(max_seqlen=9, precision="bf16", batching="padded")
    assert other.scoring_determinants(is_zero_shot=False) == {**transferred, "max_seqlen": 9}
    assert other.scoring_determinants(is_zero_shot=True) == {
        **transferred,
        "max_seqlen": 9,
        "precision": "bf16",
        "batching": "padded",
    }


def test_causal_attention_needs_packed_rows():
    causal = FinetuneProtocol(attention="causal")
    assert causal.is_causal
    assert causal.scoring_determinants(is_zero_shot=True)["attention"] == "causal"
    assert "attention" not in causal.scoring_determinants(is_zero_shot=False)
    with pytest.raises(ValidationError, match="causal needs batching: packed"):
        FinetuneProtocol(attention="causal", batching="padded")


@pytest.mark.parametrize(("num_train", "steps"), [(1, 1), (32, 1), (33, 2), (320_000, 1000)])
def test_a_run_is_one_epoch_or_the_most_steps(num_train, steps):
    assert FinetuneProtocol().num_steps(num_train) == steps


@pytest.mark.parametrize(("num_steps", "warmup"), [(1, 1), (10, 1), (11, 2), (30, 3), (1000, 100)])
def test_warmup_is_a_tenth_rounded_up(num_steps, warmup):
    schedule = FinetuneProtocol().schedule(1e-4, num_steps=num_steps)
    assert schedule.warmup_steps == warmup
    assert schedule.warmup_steps + schedule.decay_steps == num_steps


def test_warmup_is_not_lengthened_by_rounding():
    assert FinetuneProtocol(warmup_fraction=0.07).schedule(1.0, num_steps=100).warmup_steps == 7


def test_batches_are_a_pure_function_that_covers_each_epoch_once():
    every = {"items": np.arange(10), "batch_size": 4}
    drawn = [batch_indices(step, finetune_seed=3, **every) for step in range(6)]
    assert [len(batch) for batch in drawn] == [4, 4, 2, 4, 4, 2]
    first, second = np.concatenate(drawn[:3]), np.concatenate(drawn[3:])
    assert sorted(first) == sorted(second) == list(range(10))
    assert first.tolist() != second.tolist()
    cold = batch_indices(4, finetune_seed=3, **every)
    assert cold.tolist() == drawn[4].tolist()
    other = batch_indices(4, finetune_seed=4, **every)
    assert cold.tolist() != other.tolist()


def test_few_examples_are_nested_and_chosen_by_the_seed():
    def read(num_read, *, epoch=0, seed=3):
        per_epoch = -(-num_read // 4)
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        items = read_items(np.arange(40), num_examples=num_read, finetune_seed=seed)
        settings = {"items": items, "batch_size": 4, "finetune_seed": seed}
        return np.concatenate([batch_indices(step, **settings) for step in steps]).tolist()

    assert len(set(read(6))) == len(read(6)) == 6
    assert set(read(6)) == set(read(6, epoch=1)) < set(read(20)) < set(range(40))
    assert read(6) != read(6, epoch=1)
    assert set(read(6)) != set(read(6, seed=4))
    assert sorted(read(40)) == list(range(40))


def test_a_drawn_example_brings_all_of_its_items():
    of = np.array([0, 1, 1, 1, 2, 3, 3, 4])
    drawn = read_items(np.arange(5), num_examples=3, finetune_seed=7)
    items = read_items(of, num_examples=3, finetune_seed=7)
    assert items.tolist() == [item for one in drawn for item in np.flatnonzero(of == one)]
    for every in (None, 5):
        assert read_items(of, num_examples=every, finetune_seed=7).tolist() == [*range(8)]


def test_few_examples_shorten_an_epoch_and_name_another_fine_tuning():
    few = FinetuneProtocol(train_examples=33, max_epochs=3)
    assert few.num_steps(few.num_read(320_000)) == 6
    assert few.determinants(is_pooled=True)["train_examples"] == 33


@pytest.mark.parametrize(("num_steps", "num_warmup"), [(10, 1), (30, 3), (439, 44), (1000, 100)])
def test_the_schedule_is_hugging_faces_one_step_ahead(num_steps, num_warmup):
    schedule = FinetuneProtocol().schedule(1.0, num_steps=num_steps)
    check_learning_rate(schedule, total_steps=num_steps)
    ours = [learning_rate(schedule, step, total_steps=num_steps) for step in range(num_steps)]

    def theirs(total):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup, total)
        return [scheduler.lr_lambdas[0](step) for step in range(total)]

    assert ours == pytest.approx(theirs(num_steps + 1)[1:])
    # Side by side, as docs/protocol.md says it: ours, theirs.
    same_length = theirs(num_steps)
    decay = num_steps - num_warmup
    assert (ours[0], same_length[0]) == pytest.approx((1 / num_warmup, 0))
    assert (ours.index(1.0), same_length.index(1.0)) == (num_warmup - 1, num_warmup)
    assert (ours[-1], same_length[-1]) == pytest.approx((1 / (decay + 1), 1 / decay))
    widest = max(abs(one - other) for one, other in zip(ours, same_length, strict=True))
    assert widest == pytest.approx(1 / num_warmup)
