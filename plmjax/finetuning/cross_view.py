"""Cross-view training of a tagger: sentences with labels and sentences without, in turn (Clark et al., EMNLP 2018,
arXiv 1809.08370, section 2; tensorflow/models research/cvt_text).

    labelled      -sum over labels of q log p,  q the right label, smoothed
    unlabelled    -sum over auxiliary modules v, sum over labels of p log p_v,  p the primary module's probabilities

p is computed without dropout and is a constant there. A batch has besides the fields of `TokenTagging` `view_weights`
float32 [R T], 1 at the words of sentences without labels, whose `label_weights` are 0.

Deviation: what the modules `future` and `past` lose in a batch is divided by all of its words; in the released code by
those that have a word before or after them in their row.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import SHARE, UserError, check_ranges
from plmjax.finetuning.tagging import TaggedExamples, Tagging, TokenTagging
from plmjax.finetuning.task import Encoded, Task
from plmjax.layers.execution import Execution
from plmjax.layers.model_config import ModelConfig
from plmjax.models.cvt import VIEWS, CvtConfig, CvtForTagging, CvtOutput
from plmjax.objectives.objective import Batch, Given, Sums, apply

NONE = "none"
TEACHER = "teacher"
"""Field of a batch: the primary module's probabilities, float32 [R T labels]."""


@dataclasses.dataclass(frozen=True)
class TaggingWithText(Tagging):
    """Tagged sentences, and a file of sentences without labels that are trained on in turn with them."""

    unlabelled: str = ""
    """File of further sentences: the lines of a .txt file, with words separated by white space, or one such as
    --data.train, whose labels are not read. They are held in memory. `none` trains on sentences with labels alone."""

    def without_labels(self) -> TaggedExamples | None:
        """The sentences of the file `unlabelled`."""
        if self.unlabelled == NONE:
            return None
        if not self.unlabelled:
            raise UserError(
                f"Expected a file of sentences without labels in --data.unlabelled, found nothing; name one, or {NONE}."
            )
        path = f"{self.folder.rstrip('/')}/{self.unlabelled}" if self.folder else self.unlabelled
        rows = list(self.rows(path, labelled=False))
        if not any(words for _, words, *_ in rows):
            raise UserError(f"Expected sentences in {path}, found none; name another file in --data.unlabelled.")
        return self.to_examples(path, rows)


@dataclasses.dataclass(frozen=True)
class CrossViewTagging(TokenTagging):
    """Nats of the labels, and of what the primary module says of sentences without labels to all others."""

    task_class: ClassVar[type[Task]] = TaggingWithText

    label_smoothing: float = 0.1
    """Share of the probability that goes to all labels alike, in training."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("objective", self, label_smoothing=SHARE)
        if self.mix or self.mix_penalty:
            raise UserError(
                f"Expected no learned mix of layers in cross-view training, found --objective.mix {self.mix} and "
                f"--objective.mix_penalty {self.mix_penalty:g}; leave them out."
            )

    def check_model(self, config: Any) -> None:
        """Raises UserError for a model without restricted views."""
        if not isinstance(config, CvtConfig):
            raise UserError(
                f"Expected a model with restricted views of a sentence, found {type(config).__name__}; begin with "
                f"experiments/cvt.py."
            )

    def module(self, config: CvtConfig, execution: Execution) -> nn.Module:
        """The encoder and its modules."""
        return CvtForTagging(config, execution, len(self.labels))

    def encode(self, examples: TaggedExamples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """As `TokenTagging`, with `view_weights` of 0."""
        encoded = super().encode(examples, tokenizer, model, task)
        none = np.zeros_like(encoded.token_fields["label_weights"])
        return dataclasses.replace(encoded, token_fields=encoded.token_fields | {"view_weights": none})

    def encode_without_labels(
        self, examples: TaggedExamples, tokenizer: Any, model: ModelConfig, task: Task
    ) -> Encoded:
        """As `encode`, with `label_weights` of 0 and `view_weights` of 1 at words."""
        fields = (encoded := self.encode(examples, tokenizer, model, task)).token_fields
        weights = {"label_weights": fields["view_weights"], "view_weights": fields["label_weights"]}
        return dataclasses.replace(encoded, token_fields=fields | weights)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """As `TaskObjective`, with the rows that have no labels."""
        return super().model_inputs(batch) | {"unlabelled": jnp.any(batch["view_weights"] > 0, axis=1)}

    def sums(self, module: nn.Module, given: Given, batch: Batch, key: jax.Array, *, training: bool) -> Sums:
        """The losses and metrics of a batch; in training the primary module first says what the others shall learn."""
        if training:
            teacher = apply(self, module, given, batch, key, training=False)
            batch = batch | {TEACHER: jax.lax.stop_gradient(jax.nn.softmax(teacher.logits))}
        return self.sums_of(apply(self, module, given, batch, key, training=training), batch)

    def losses(self, outputs: CvtOutput, batch: Batch) -> dict[str, jax.Array]:
        """Nats of words: of their labels, smoothed in training, or summed over the views."""
        if TEACHER not in batch:
            return {"task": self.nats(outputs, batch)}
        smooth = jax.nn.one_hot(batch["labels"], len(self.labels)) * (1 - self.label_smoothing)
        labelled = _nats(smooth + self.label_smoothing / len(self.labels), outputs.logits)
        return {"task": jnp.where(batch["label_weights"] > 0, labelled, self.view_nats(outputs, batch))}

    def view_nats(self, outputs: CvtOutput, batch: Batch) -> jax.Array:
        """Of the primary module's probabilities, summed over the modules that see a word: float32 [R T]."""
        words, rows = batch["view_weights"] > 0, batch["segment_ids"]
        after_another = words[:, 1:] & words[:, :-1] & (rows[:, 1:] == rows[:, :-1])
        sees = {
            "future": jnp.pad(after_another, ((0, 0), (1, 0))),
            "past": jnp.pad(after_another, ((0, 0), (0, 1))),
        }
        return sum(jnp.where(sees.get(view, words), _nats(batch[TEACHER], outputs.views[view]), 0.0) for view in VIEWS)

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Every word counts once, [R T]."""
        return {"task": batch["label_weights"] + batch["view_weights"]}

    def counts(self, outputs: CvtOutput, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """accuracy; and in training `view_nats`, what the other modules lose at a word without a label."""
        counts = super().counts(outputs, batch)
        if TEACHER in batch:
            weights = batch["view_weights"]
            counts["view_nats"] = (jnp.sum(weights * self.view_nats(outputs, batch)), jnp.sum(weights))
        return counts

    def head_flops(self, config: CvtConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """6 for every multiplication of the modules, and 2 for every one of the encoder that says what they learn."""
        rows, length = batch["input_ids"].shape
        first, _ = config.lstm_outputs
        inputs = 2 * config.width + 4 * first
        modules = config.projection_size * (inputs + (1 + len(VIEWS)) * len(self.labels))
        return 6.0 * rows * length * modules + config.train_flops(rows, length, 0) / 3


def _nats(probabilities: jax.Array, logits: jax.Array) -> jax.Array:
    """Cross entropy in float32: [... labels] both -> [...]."""
    return -jnp.sum(probabilities * jax.nn.log_softmax(logits.astype(jnp.float32)), axis=-1)
