"""A checkpoint as a language model: scores of the tokens of rows, each given the tokens before it."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.parameters import check_parameters
from plmjax.errors import UserError
from plmjax.inference.perplexity import language_model, row_length
from plmjax.inference.rows import batches
from plmjax.objectives.capabilities import ScoresNextToken, prefix_of
from plmjax.objectives.objective import Batch, LossInputs
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints

ROWS = 32
"""Number of rows per batch."""


class Scores(NamedTuple):
    """Scores of the n scored tokens: nats float32 [n], and bool [n], true if no other token is more likely."""

    nats: np.ndarray
    likeliest: np.ndarray


class LanguageModel:
    """Language model and tokenizer of a checkpoint.

    tokenizer: a plmjax.data.tokenizers.Tokenizer.
    window: maximum number of tokens that a prediction is conditioned on.
    begin: token before a text; in training it stands between documents.
    """

    def __init__(self, checkpoint: str | Path, window: int | None = None) -> None:
        """Load the checkpoint.

        Raises:
            UserError: no checkpoint, one that is not a language model or reads text backward, a tokenizer without a
                token to begin a text, or a window that exceeds the model's positions.
        """
        params, description = checkpoints.load_parameters(checkpoint)
        run = description.experiment
        self._task, self._config = language_model(run), run.model
        if run.model.system.backwards:
            raise UserError(
                f"Expected a language model that reads a text forward, found one in {checkpoint} that reads it "
                f"backward; name another checkpoint."
            )
        self.window = row_length(run, window)
        self.tokenizer = description.load_tokenizer()
        self.begin = self.tokenizer.vocabulary.document_end
        if self.begin < 0:
            raise UserError(
                f"Expected a tokenizer with an end or separator token to begin a text in {checkpoint}, found "
                f"one with neither; name another checkpoint."
            )
        self._module = self._task.module(run.model, programs.execution(run, jax.default_backend()))
        token = _batch(np.zeros((1, 1), np.int32), np.ones((1, 1), bool), np.zeros((1, 1), np.int32))
        hint = "it does not score the next token"
        check_parameters(self._module, params, self._task.model_inputs(token), origin=checkpoint, hint=hint)
        self._params = jax.device_put(params)

    @property
    def prefix(self) -> str:
        """Part of a row that is read with bidirectional attention (`ReadsPrefix.prefix`)."""
        return prefix_of(self._task)

    def score(self, rows: Sequence[Sequence[int]], counts: Sequence[int] | None = None) -> list[Scores]:
        """Return the scores of the last tokens of every row, given all tokens before them.

        counts: number of scored tokens of each row; by default all but the first token. A row has at most one token
        more than the window.
        """
        counts = [len(row) - 1 for row in rows] if counts is None else counts
        scored: list[Any] = [None] * len(rows)
        pad = max(self.tokenizer.vocabulary.pad, 0)
        for chosen, inputs in batches([list(row[:-1]) for row in rows], self.window, ROWS, pad):
            next_ids = np.full(inputs["input_ids"].shape, pad, np.int32)
            for place, row in enumerate(chosen):
                next_ids[place, : len(rows[row]) - 1] = rows[row][1:]
            carry = nn.meta.unbox(self._task.evaluation_carry(self._config, *next_ids.shape))
            batch = _batch(**inputs, next_ids=next_ids)
            context_lengths = np.array([len(rows[row]) - 1 - counts[row] for row in chosen])
            context_lengths = np.pad(context_lengths, (0, len(next_ids) - len(context_lengths)))
            batch["next_weights"] *= np.arange(next_ids.shape[1]) >= context_lengths[:, None]
            nats, likeliest = jax.device_get(
                _score(self._task, self._module, LossInputs(self._params, carry=carry), batch)
            )
            for place, row in enumerate(chosen):
                which = slice(context_lengths[place], len(rows[row]) - 1)
                scored[row] = Scores(nats[place, which], likeliest[place, which])
        return scored


def _batch(input_ids: Any, attention_mask: Any, next_ids: np.ndarray) -> Batch:
    """Return a batch with the fields of `Chunks`, in which each row starts a text."""
    real = jnp.asarray(attention_mask).astype(jnp.int32)
    return {
        "input_ids": jnp.asarray(input_ids),
        "segment_ids": real,
        "positions": real * jnp.arange(real.shape[1]),
        "next_ids": jnp.asarray(next_ids),
        "next_weights": real.astype(jnp.float32),
    }


@functools.partial(jax.jit, static_argnames=("task", "module"))
def _score(
    task: ScoresNextToken, module: nn.Module, loss_inputs: LossInputs, batch: Batch
) -> tuple[jax.Array, jax.Array]:
    return task.score(module, loss_inputs, batch, jax.random.key(0), training=False)
