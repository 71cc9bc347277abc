"""AWD-LSTM's training objective: the next token, with activation regularization and windows of varying length.

Merity et al. (ICLR 2018, arXiv 1708.02182), sections 4.1 and 4.6; salesforce/awd-lstm-lm main.py.

    loss = mean of nats + 2 mean of y^2 + mean of (h_t - h_{t-1})^2

y is the output of the last layer after its dropout, h the same output before dropout. The states are carried from
window to window, but no gradient passes between windows.

Rows are such as `Windows` gives. Every step reads a window of random length; the next one begins at its end. The
released code multiplies the learning rate of a step by length / 70. So a token has the same weight in a short window as
in a long one. Here the sums of a window are divided by the number of tokens of a mean window, with the same effect.

Deviation: this scales the gradient before it is clipped, and not the update after it.
Deviation: a length is the mean plus the difference of two draws, one for the end of this window and one for the end of
the previous window. Its standard deviation is the paper's 5, cut where the rows' overlap ends. The paper draws one
window in twenty around half the length; this is left out.
Deviation: a penalty is divided by the number of its tokens in the mean window; in the released code by the number in
this window. The last two deviations have no effect on windows of one length.
"""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.system import ParameterGroup
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FROM_0, check_choice, check_ranges
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.objectives.capabilities import DOCUMENTS, ScoresNextToken
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective, apply

Carry = dict[str, Any]
"""states: the states of every layer. begin: int32 [B], the first unread token of the next row."""


@dataclasses.dataclass(frozen=True)
class AwdLstmPretraining(ScoresNextToken, Objective):
    """Mean nats of each token given all tokens before it, and two penalties on the last layer's output.

    Rows are such as `Windows` gives, or as `ContiguousStreams` gives, where a window is a row.
    """

    activation_penalty: float = 2.0
    """Factor of the mean square of the output after dropout (AR, alpha)."""
    slowness_penalty: float = 1.0
    """Factor of the mean squared difference of consecutive outputs (TAR, beta)."""
    length_deviation: float = 5.0
    """Standard deviation of the window length, in tokens."""
    documents: str = "apart"
    """apart: the states begin anew with each document; joined: they go on, as in the released code."""

    def __post_init__(self) -> None:
        check_choice("--objective.documents", self.documents, DOCUMENTS)
        ranges = dict.fromkeys(("activation_penalty", "slowness_penalty", "length_deviation"), FROM_0)
        check_ranges("objective", self, **ranges)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        optional = {"starts": batch["starts"]} if "starts" in batch else {}
        read = batch["read"] if "read" in batch else batch["segment_ids"] > 0
        return {"input_ids": batch["input_ids"], "attention_mask": read, **optional}

    def carry_inputs(self, carry: Carry) -> dict[str, Any]:
        return {"states": carry["states"]}

    def initial_carry(
        self, config: AwdLstmConfig, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32
    ) -> Carry:
        """Return zero states, float32, and rows that begin at their first token."""
        boxed = (lambda x: nn.LogicallyPartitioned(x, ("batch", "embed"))), config.zero_states(batch_size)
        begin = nn.LogicallyPartitioned(jnp.zeros(batch_size, jnp.int32), ("batch",))
        return {"states": jax.tree.map(*boxed), "begin": begin}

    def parameter_groups(self, config: AwdLstmConfig) -> tuple[ParameterGroup, ...]:
        """Return the layers only.

        The token embedding table also scores the next token. So it has the head's learning rate, as in fastai
        (text/models/awdlstm.py, `awd_lstm_lm_split`).
        """
        return config.parameter_groups[1:]

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Add the first positions of documents, if documents are separate, and the end of a training step's window.

        The end is the same in all rows. A document begins with the end token before it, which predicts its first token.
        """
        if self.documents == "apart":
            batch = batch | {"starts": batch["input_ids"] == vocabulary.document_end}
        if "overlap" in batch:
            middle, deviation = batch["overlap"] / 2, self.length_deviation / math.sqrt(2)
            past = jnp.round(middle + deviation * jax.random.normal(key)).astype(jnp.int32)
            batch["repeated"] = jnp.clip(past, 0, batch["overlap"])
        return batch

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of target tokens in a mean window, and of pairs of adjacent target tokens."""
        asked = batch["next_weights"]
        tokens, pairs = jnp.sum(asked), jnp.sum(asked[:, 1:] * asked[:, :-1])
        return {
            "next_token": jnp.maximum(tokens, 1e-9),
            "activation": jnp.maximum(tokens, 1e-9),
            "slowness": jnp.maximum(pairs, 1e-9),
        }

    def coefficients(self) -> dict[str, float]:
        return {"activation": self.activation_penalty, "slowness": self.slowness_penalty}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return the nats and the penalties of the target tokens in the window, and the states after them."""
        read, weights, begin = _window(batch, loss_inputs.carry["begin"], training)
        outputs = apply(self, module, loss_inputs, batch=batch | {"read": read}, key=key, training=training)
        nats, likeliest = outputs.scores.weighted_cross_entropy(batch["next_ids"], weights)
        dropped, raw = (x.astype(jnp.float32) for x in (outputs.last_hidden_state, outputs.raw_hidden_state))
        squares = jnp.mean(jnp.square(dropped), axis=-1)
        steps = jnp.mean(jnp.square(raw[:, 1:] - raw[:, :-1]), axis=-1)
        losses = {
            "next_token": nats,
            "activation": jnp.sum(weights * squares),
            "slowness": jnp.sum(weights[:, 1:] * weights[:, :-1] * steps),
        }
        total = jnp.sum(weights)
        metrics = {"accuracy": (jnp.sum(weights * likeliest), total), "nats": (nats, total)}
        return LossSums(losses, metrics, {"states": outputs.states, "begin": begin})

    def score(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        return apply(self, module, loss_inputs, batch=batch, key=key, training=training).scores.cross_entropy(
            batch["next_ids"]
        )

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["next_ids"], batch["next_weights"]

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        rows, length = batch["input_ids"].shape
        return config.train_flops(rows, length, length)


def _window(batch: Batch, begin: jax.Array, training: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the tokens to read, bool [B T], their weights, and the first unread token of the next row, int32 [B].

    Rows that are not windows may repeat tokens too: these are read in the first row of a stream only.
    """
    real, asked = batch["segment_ids"] > 0, batch["next_weights"]
    if training and "overlap" in batch:
        place, length = jnp.arange(real.shape[1]), real.shape[1]
        end = length - batch["overlap"] + batch["repeated"]
        read = real & (place >= begin[:, None]) & (place < end[:, None])
        return read, read.astype(jnp.float32), batch["repeated"]
    return real & ((asked > 0) | (batch["is_first"][:, None] > 0)), asked, begin
