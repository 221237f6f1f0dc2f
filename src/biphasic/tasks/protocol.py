"""How a model is fine-tuned: every constant of the protocol, and its learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from biphasic.config import Config
from biphasic.data.packing import Batching
from biphasic.objectives.lr import LearningRateConfig
from biphasic.training.recipe import FinetunePrecision

_ADDED = ("batching",)
"""Fields that came later: they name a fine-tuning only where they differ from their defaults."""

FINETUNING_VERSION = 3
"""Raised by hand whenever the same fine-tuning would give other scores."""


class FinetuneProtocol(Config):
    """Fine-tuning as the reference study does it, arXiv:2507.00994, section 2 and appendix A.

    Learning rate and seed are not here: they vary within a study.
    """

    max_steps: PositiveInt = Field(default=1000, description="Most optimizer steps of a run.")
    max_epochs: PositiveInt = Field(default=1, description="Most passes over the training split.")
    batch_size: PositiveInt = Field(
        default=32, description="Texts, sentences, windows or pairs in an optimizer step."
    )
    max_seqlen: int = Field(
        default=2048,
        ge=8,
        description="Longest sequence in tokens, special tokens included; longer ones are cut. "
        "`biphasic evaluate` takes the model's own limit unless this is set.",
    )
    batching: Batching = Field(
        default="packed",
        description="packed: rows hold several sequences, kept apart by our attention function; "
        "padded: one sequence in a row, and the attention that the model has of its own. Scores "
        "are the same; encoders with an attention of another kind (DeBERTa, MPNet) need padding.",
    )
    warmup_fraction: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the steps in which the learning rate rises."
    )
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="Decay of AdamW's first moment.")
    adam_beta2: float = Field(
        default=0.95, ge=0, lt=1, description="Decay of AdamW's second moment."
    )
    adam_epsilon: PositiveFloat = Field(default=1e-5, description="AdamW's epsilon.")
    weight_decay: NonNegativeFloat = Field(
        default=0.1, description="AdamW's decoupled weight decay, on matrices; vectors have none."
    )
    max_gradient_norm: PositiveFloat | None = Field(
        default=1.0,
        description="Gradients of a larger norm are scaled down to it. The study does not state "
        "it; 1 is the default of the trainer its public configurations are written for.",
    )
    precision: FinetunePrecision = Field(
        default="fp32",
        description="What the model computes in. Weights are kept in fp32 with fp32 and bf16; with "
        "paper, as in the study, all is bf16: weights, gradients and AdamW's moments.",
    )
    similarity_scale: PositiveFloat = Field(
        default=20.0,
        description="Retrieval: factor on cosines before the softmax (1 / temperature).",
    )
    retrieval_corpus: Literal["full", "judged"] = Field(
        default="full",
        description="Retrieval: search all documents, or as the study does only those that the "
        "judgements of validation or test name.",
    )
    max_question_tokens: PositiveInt = Field(
        default=64, description="Question answering: longer questions are cut."
    )
    window_overlap: NonNegativeInt = Field(
        default=64,
        description="Question answering: tokens that neighbouring windows of a context share.",
    )
    max_answer_tokens: PositiveInt | None = Field(
        default=None,
        description="Question answering: longest answer decoded, in tokens; by default the longest "
        "answer of the training split.",
    )

    @staticmethod
    def paper(max_positions: int) -> dict[str, Any]:
        """Return the settings by which the study's fine-tuning differs from our defaults.

        Args:
            max_positions: The model's `max_position_embeddings`.
        """
        return {
            "max_seqlen": round(0.99 * max_positions),
            "precision": "paper",
            "retrieval_corpus": "judged",
        }

    def num_steps(self, num_train: int) -> int:
        """Return the optimizer steps of a run over `num_train` examples."""
        return min(self.max_steps, self.max_epochs * math.ceil(num_train / self.batch_size))

    def schedule(self, learning_rate: float, *, num_steps: int) -> LearningRateConfig:
        """Return linear warm-up and linear decay to zero that fill a run of `num_steps`."""
        # 0.07 * 100 is a little more than 7 in floating point.
        warmup_steps = math.ceil(self.warmup_fraction * num_steps - 1e-9)
        return LearningRateConfig(
            peak=learning_rate, warmup_steps=warmup_steps, decay_steps=num_steps - warmup_steps
        )

    def determinants(self) -> dict[str, Any]:
        """Return what names a fine-tuning: every constant.

        A field that is added later must have a default that means "as before", and is left out
        while it has it (`_ADDED`), so that old results keep their names.
        """
        settings = self.model_dump()
        defaults = {name: type(self).model_fields[name].default for name in _ADDED}
        return {
            name: value
            for name, value in settings.items()
            if name not in defaults or value != defaults[name]
        }

    def scoring_determinants(self, *, is_zero_shot: bool) -> dict[str, Any]:
        """Return what names the scores on a task that is not itself trained on.

        Of its protocol only what its texts are encoded by is read; how the encoder computes is
        up to the protocol of the task that it was fine-tuned on, if there is one.

        Args:
            is_zero_shot: There is none.
        """
        names = {"max_seqlen", "retrieval_corpus"}
        if is_zero_shot:
            names |= {"precision", "batching"}
        return {name: value for name, value in self.determinants().items() if name in names}
