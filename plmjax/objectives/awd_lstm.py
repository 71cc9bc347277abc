"""AWD-LSTM's training: the next token, with activation regularization and windows of varying length (Merity et al.,
ICLR 2018, arXiv 1708.02182, sections 4.1 and 4.6; salesforce/awd-lstm-lm main.py).

    loss = mean of nats + 2 mean of y^2 + mean of (h_t - h_{t-1})^2

y is the output of the last layer after its dropout, h the same before it. The states go from window to window; the
gradient does not.

Of rows such as `Windows` gives, every step reads a window whose length is drawn; the next begins where it ended.
The released code multiplies the learning rate of a step by length / 70, so that a token counts the same in a short
window as in a long one; here the sums of a window are divided by the tokens of a mean one, to the same end.

Deviation: that scales the gradient before it is clipped, and not the update after it.
Deviation: a length is the mean plus the difference of two draws, where this window ends and where the one before did;
its standard deviation is the paper's 5, cut where the rows' overlap ends. The one window in twenty that the paper draws
around half the length is left out.
Deviation: a penalty is divided by the tokens that it is taken over in the mean window; in the released code by those of
this one. The last two have no effect on windows of one length.
"""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.system import ParameterGroup
from plmjax.errors import FROM_0, check_ranges
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.objectives.capabilities import ScoresNextToken
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective, apply
from plmjax.vocabulary import Vocabulary

Carry = dict[str, Any]
"""states: of every layer. begin: int32 [B], the first token of the next row that has not been read yet."""


@dataclasses.dataclass(frozen=True)
class AwdLstmPretraining(ScoresNextToken, Objective):
    """Mean nats of each token given all before it in its document, and two penalties on the last layer's output.

    Rows are such as `Windows` gives, or `Streams`, where every window is a row.
    """

    activation_penalty: float = 2.0
    """Factor of the mean square of the dropped output (AR, alpha)."""
    slowness_penalty: float = 1.0
    """Factor of the mean squared difference of outputs that follow each other (TAR, beta)."""
    length_deviation: float = 5.0
    """Standard deviation of the length of a window, in tokens."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        ranges = dict.fromkeys(("activation_penalty", "slowness_penalty", "length_deviation"), FROM_0)
        check_ranges("objective", self, **ranges)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """The tokens, those among them that are read, and where a document begins."""
        given = {"starts": batch["starts"]} if "starts" in batch else {}
        read = batch["read"] if "read" in batch else batch["segment_ids"] > 0
        return {"input_ids": batch["input_ids"], "attention_mask": read, **given}

    def carry_inputs(self, carry: Carry) -> dict[str, Any]:
        """The states before the row."""
        return {"states": carry["states"]}

    def initial_carry(self, config: AwdLstmConfig, batch_size: int, sequence_length: int) -> Carry:
        """Zero states, and rows that begin at their first token."""
        boxed = (lambda x: nn.LogicallyPartitioned(x, ("batch", "embed"))), config.zero_states(batch_size)
        begin = nn.LogicallyPartitioned(jnp.zeros(batch_size, jnp.int32), ("batch",))
        return {"states": jax.tree.map(*boxed), "begin": begin}

    def parameter_groups(self, config: AwdLstmConfig) -> tuple[ParameterGroup, ...]:
        """The layers alone: the table of words scores the next token too, and learns at the head's rate as in fastai
        (text/models/awdlstm.py, `awd_lstm_lm_split`)."""
        return config.parameter_groups[1:]

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Adds where documents begin, and where the window of a training step ends, the same in all rows.

        A document begins with the end token before it, which asks for its first token.
        """
        batch = batch | {"starts": batch["input_ids"] == vocabulary.document_end}
        if "overlap" in batch:
            middle, deviation = batch["overlap"] / 2, self.length_deviation / math.sqrt(2)
            past = jnp.round(middle + deviation * jax.random.normal(key)).astype(jnp.int32)
            batch["repeated"] = jnp.clip(past, 0, batch["overlap"])
        return batch

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens that the batch asks for, which are those of a mean window, and pairs of them that are neighbours."""
        asked = batch["next_weights"]
        tokens, pairs = jnp.sum(asked), jnp.sum(asked[:, 1:] * asked[:, :-1])
        return {
            "next_token": jnp.maximum(tokens, 1e-9),
            "activation": jnp.maximum(tokens, 1e-9),
            "slowness": jnp.maximum(pairs, 1e-9),
        }

    def coefficients(self) -> dict[str, float]:
        """The two penalties' factors."""
        return {"activation": self.activation_penalty, "slowness": self.slowness_penalty}

    def sums(self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array, *, training: bool) -> LossSums:
        """Nats and squares of the tokens that are read and asked for, and the states after them."""
        read, weights, begin = _window(batch, given.carry["begin"], training)
        outputs = apply(self, module, given, batch | {"read": read}, key, training=training)
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
        self, module: nn.Module, given: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> tuple[jax.Array, jax.Array]:
        """As `ScoresNextToken`."""
        return apply(self, module, given, batch, key, training=training).scores.cross_entropy(batch["next_ids"])

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The token after each."""
        return batch["next_ids"], batch["next_weights"]

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """The layers', with a prediction at every position."""
        rows, length = batch["input_ids"].shape
        return config.train_flops(rows, length, length)


def _window(batch: Batch, begin: jax.Array, training: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Which tokens are read, bool [B T], and their weights; int32 [B], where the next row's unread tokens begin.

    Rows that are no windows may repeat tokens too: they are read in the first row of a stream alone.
    """
    real, asked = batch["segment_ids"] > 0, batch["next_weights"]
    if training and "overlap" in batch:
        place, length = jnp.arange(real.shape[1]), real.shape[1]
        end = length - batch["overlap"] + batch["repeated"]
        read = real & (place >= begin[:, None]) & (place < end[:, None])
        return read, read.astype(jnp.float32), batch["repeated"]
    return real & ((asked > 0) | (batch["begins"][:, None] > 0)), asked, begin
