"""AWD-LSTM's steps against a torch model, with the very masks that were drawn; tests/families has its row."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.layers.dropout import Dropout, effective_rate
from plmjax.models.awd_lstm import AwdLstmForCausalLM
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.objective import LossInputs, LossSums
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.step import total_loss
from tests.families import torch_layers
from tests.families.recurrent import AWD_LSTM
from tests.optional import torch
from tests.systems.modules import random_params

BATCH, LENGTH = 3, 7
CONFIG = dataclasses.replace(
    AWD_LSTM, embedding_dropout=0.2, input_dropout=0.5, weight_dropout=0.4, hidden_dropout=0.3, output_dropout=0.25
)
TASK = AwdLstmPretraining()
WORDS = Vocabulary.placeholder(CONFIG.vocab_size)


def in_torch(params: Any, dtype: Any = None, learn: bool = True) -> dict[str, torch.Tensor]:
    """By path."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    return {path: torch.tensor(np.array(array), dtype=dtype).requires_grad_(learn) for path, array in flat.items()}


def as_tree(tensors: dict[str, torch.Tensor], read: Any = torch.detach) -> Any:
    return flax.traverse_util.unflatten_dict({path: read(one).numpy() for path, one in tensors.items()}, sep="/")


def gradient_of(tensors: dict[str, torch.Tensor]) -> Any:
    return as_tree(tensors, lambda one: one.grad)


def by_torch(params: dict[str, Any], batch: Any, states: list, masks: Any = None) -> tuple[torch.Tensor, Any, list]:
    """The loss of a batch, its outputs, and the states after it, of each layer and row.

    The five dropouts are products with masks, written from section 4 of the paper.
    """
    ids, targets = (torch.tensor(batch[name]).long() for name in ("input_ids", "next_ids"))
    ones = [torch.ones(1)] * 6
    of_words, of_input, of_first, *others, of_output = ones if masks is None else map(torch.tensor, masks)
    table, after = params["awd_lstm/word_embeddings/embedding"], []
    x = (table * of_words)[ids]
    for number, (mask, of_kernel) in enumerate(((of_input, of_first), others)):
        name = f"awd_lstm/layer_{number}/recurrent_kernel"
        own = params | {name: params[name] * of_kernel}
        rows = zip(x * mask, states[number], strict=True)
        read = [torch_layers.lstm(own, f"awd_lstm/layer_{number}", row, state=state) for row, state in rows]
        x = torch.stack([outputs for outputs, *_ in read])
        after.append([[part.detach() for part in state] for _, *state in read])
    dropped = x * of_output
    logits = dropped @ table.T + params["output_bias"]
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    activation, slowness = dropped.square().mean(), (x[:, 1:] - x[:, :-1]).square().mean()
    return nats + 2 * activation + slowness, (x, dropped, logits), after


def made_batch(seed: int) -> dict[str, np.ndarray]:
    """A row of tokens a place; none is the end token."""
    tokens = np.random.default_rng(seed).integers(WORDS.document_end + 1, 23, (BATCH, LENGTH + 1), np.int32)
    batch = {
        "input_ids": tokens[:, :-1],
        "next_ids": tokens[:, 1:],
        "next_weights": np.ones((BATCH, LENGTH), np.float32),
        "segment_ids": np.ones((BATCH, LENGTH), np.int32),
        "is_first": np.zeros(BATCH, np.int32),
    }
    return TASK.corrupt(batch, jax.random.key(0), WORDS)


def drawn_states(seed: int) -> dict[str, Any]:
    carry = nn.meta.unbox(TASK.initial_carry(CONFIG, BATCH, LENGTH))
    random = np.random.default_rng(seed)
    states = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), carry["states"])
    return carry | {"states": states}


def torch_states(carry: Any) -> list:
    """Return the output and the cell of each layer and row."""
    arrays = ((np.array(state.output), np.array(state.cell)) for state in carry["states"])
    return [list(zip(*map(torch.tensor, both), strict=True)) for both in arrays]


def test_a_training_step_equals_torch_with_the_same_masks() -> None:
    """Masks are those of tokens of the vocabulary, of recurrent weights, and of features, for all tokens of a row."""
    module = AwdLstmForCausalLM(CONFIG)
    params, carry, batch = random_params(module), drawn_states(1), made_batch(2)
    masks, outputs = [], []

    def watch(call: Any, arguments: Any, keywords: Any, context: Any) -> Any:
        found = call(*arguments, **keywords)
        if isinstance(context.module, Dropout) and context.method_name == "__call__":
            x, together = arguments[0], context.module.together
            mask = found / jnp.where(x == 0, 1, x)
            masks.append(jnp.max(mask, axis=1, keepdims=True) if together else mask)  # a dropped token is 0
        if isinstance(context.module, AwdLstmForCausalLM):
            outputs.append(found)
        return found

    def loss(params: Any) -> tuple[jax.Array, Any]:
        masks.clear(), outputs.clear()
        with nn.intercept_methods(watch):
            sums = TASK.sums(module, LossInputs(params, carry=carry), batch, jax.random.key(3), training=True)
        return total_loss(TASK, sums.losses, TASK.weights(batch)), (sums, list(masks), outputs[-1])

    (found, (sums, masks, outputs)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    masks = jax.device_get(masks)
    tensors = in_torch(params)
    loss, (raw, dropped, logits), after = by_torch(tensors, batch, torch_states(carry), masks)
    loss.backward()
    expected = (loss, raw, dropped, logits)
    ours = (found, outputs.raw_hidden_state, outputs.last_hidden_state, outputs.logits)
    chex.assert_trees_all_close(ours, tuple(x.detach().numpy() for x in expected), rtol=1e-5, atol=1e-5)
    states = [tuple(torch.stack(parts).numpy() for parts in zip(*rows, strict=True)) for rows in after]
    found = [(state.output, state.cell) for state in sums.carry["states"]]
    chex.assert_trees_all_close(found, states, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(gradient, gradient_of(tensors), rtol=1e-4, atol=1e-5)
    assert [mask.shape for mask in masks] == [(23, 1), (3, 1, 6), (10, 4, 10), (3, 1, 10), (6, 4, 6), (3, 1, 6)]
    for mask, rate in zip(masks, (0.2, 0.5, 0.4, 0.3, 0.4, 0.25), strict=True):
        np.testing.assert_allclose(np.unique(mask.round(4)), [0, 1 / (1 - effective_rate(rate))], rtol=1e-3)
    gone = np.asarray(outputs.last_hidden_state) == 0
    assert 0 < gone.mean() < 1 and (gone == gone[:, :1]).all() and (gone[0] != gone[1]).any()


def test_twenty_steps_with_carried_states_equal_torchs() -> None:
    """Clipping, weight decay and a large rate; each step goes on from the states of the one before."""
    module = AwdLstmForCausalLM(CONFIG.with_dropout(0.0))
    params, carry = random_params(module), drawn_states(1)
    tensors, states = in_torch(params), torch_states(carry)
    optimizer = StochasticGradientDescent(learning_rate=3.0, clip_norm=0.21, weight_decay=1e-3)
    update = optimizer.build(20, params)
    state = update.init(params)
    theirs = torch.optim.SGD(tensors.values(), lr=3.0, weight_decay=1e-3)

    @jax.jit
    def step(params: Any, state: Any, carry: Any, batch: Any) -> tuple:
        def loss(params: Any) -> tuple[jax.Array, LossSums]:
            sums = TASK.sums(module, LossInputs(params, carry=carry), batch, jax.random.key(0), training=True)
            return total_loss(TASK, sums.losses, TASK.weights(batch)), sums.carry

        (value, carry), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = update.update(gradient, state, params)
        return jax.tree.map(jnp.add, params, updates), state, carry, value

    norms = []
    for number in range(20):
        batch = made_batch(number)
        params, state, carry, value = step(params, state, carry, batch)
        theirs.zero_grad()
        loss, _, states = by_torch(tensors, batch, states)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(tensors.values(), 0.21)))
        theirs.step()
        np.testing.assert_allclose(value, loss.detach(), rtol=1e-5)
    assert np.mean(np.array(norms) > 0.21) > 0.2
    chex.assert_trees_all_close(params, as_tree(tensors), rtol=1e-4, atol=1e-5)


def test_padding_passes_the_states_on_and_documents_begin_anew() -> None:
    module = AwdLstmForCausalLM(CONFIG)
    apply = jax.jit(functools.partial(module.apply, {"params": random_params(module)}))
    ids, states = made_batch(0)["input_ids"], drawn_states(1)["states"]
    whole = apply(ids[:, :4], states=states)
    padded = apply(ids, attention_mask=np.tile(np.arange(LENGTH) < 4, (BATCH, 1)), states=states)
    chex.assert_trees_all_close(padded.states, whole.states, atol=1e-6)
    starts = np.tile(np.arange(LENGTH) == 4, (BATCH, 1))
    np.testing.assert_allclose(apply(ids, starts=starts).logits[:, 4:], apply(ids[:, 4:]).logits, atol=1e-5)
