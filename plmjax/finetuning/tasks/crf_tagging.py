"""A label for every word, predicted for the whole sentence by a conditional random field on any encoder.

Besides the fields of `TokenTagging`, a batch has `first_words` and `last_words`, bool [R T]. They are true at the first
piece of the first and of the last word of every sentence. A sentence that was truncated at the end of its row has no
last word.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.tasks import label_schemes
from plmjax.finetuning.tasks.tagging import TaggedExamples, TokenTagging
from plmjax.finetuning.tasks.task import Task
from plmjax.layers import crf
from plmjax.layers.crf import Chain
from plmjax.models.families.task_heads import CrfTokenClassification, TaggingOutput
from plmjax.objectives.objective import Batch


@dataclasses.dataclass(frozen=True)
class CrfTagging(TokenTagging):
    """The nats per word of a sentence's labels: -log of their probability among all sequences that the scheme allows.

    The prediction is the most likely sequence. The probability of a label is its marginal probability.
    """

    scheme: str = ""
    """Scheme of the labels, which defines the labels that may follow each label; by default that of the train file,
    --data.scheme.
    """

    def fit_labels(self, train: TaggedExamples) -> "CrfTagging":
        """Return the objective with the labels of the train file and their scheme.

        Raises:
            UserError: a label that is not of the scheme, or only one label.
        """
        learned = super().fit_labels(train)
        scheme = self.scheme or train.scheme
        label_schemes.check_scheme(scheme)
        label_schemes.possible(learned.labels, scheme)
        return dataclasses.replace(learned, scheme=scheme)

    def module(self, config: Any, execution: Execution) -> nn.Module:
        possible = label_schemes.possible(self.labels, self.scheme)
        return CrfTokenClassification(config, execution, len(self.labels), self.mix, possible)

    def encode(self, examples: TaggedExamples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """Encode like `TokenTagging`, with the first and last words of sentences."""
        encoded = super().encode(examples, tokenizer, model, task)
        words = np.flatnonzero(encoded.token_fields["label_weights"])
        begins = np.searchsorted(words, encoded.offsets)
        counts = np.diff(begins)
        whole = (counts > 0) & (counts == [len(words) for words in examples.words])
        first, last = np.zeros((2, len(encoded.tokens)), bool)
        first[words[begins[:-1][counts > 0]]] = True
        last[words[begins[1:][whole] - 1]] = True
        fields = encoded.token_fields | {"first_words": first, "last_words": last}
        return dataclasses.replace(encoded, token_fields=fields)

    def nats(self, outputs: TaggingOutput, batch: Batch) -> jax.Array:
        """Return the nats of the labels, float32 [R T]; the loss of a sentence is their sum over its words."""
        return crf.nats(outputs.logits, batch["labels"], outputs.transitions, _chain(batch))

    def likeliest(self, outputs: TaggingOutput, batch: Batch) -> jax.Array:
        """Return the label ids of the most likely sequences, int [R T]."""
        return crf.viterbi(outputs.logits, outputs.transitions, _chain(batch))

    def outputs_for_prediction(self, outputs: TaggingOutput, batch: Batch) -> jax.Array:
        """Return float32 [R T 2]: the id of the predicted label, and its probability."""
        labels = self.likeliest(outputs, batch)
        probabilities = crf.marginals(outputs.logits, outputs.transitions, _chain(batch))
        probability = jnp.take_along_axis(probabilities, labels[..., None], axis=-1)
        return jnp.concatenate([labels[..., None].astype(jnp.float32), probability], axis=-1)

    def decode_labels(self, collected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return collected[:, 0].astype(np.int64), collected[:, 1]

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the FLOPs of the linear layer, and 6 labels^2 per token for the forward algorithm."""
        transitions = 6.0 * int(np.prod(batch["input_ids"].shape)) * len(self.labels) ** 2
        return super().head_flops(config, batch) + transitions


def _chain(batch: Batch) -> Chain:
    return Chain(batch["label_weights"] > 0, batch["first_words"], batch["last_words"])
