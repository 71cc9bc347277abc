"""AWD-LSTM's steps against a torch model, with the very masks that were drawn; tests/families has its row."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.layers.dropout import Dropout, effective_rate
from plmjax.models.awd_lstm import AwdLstmForCausalLM
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.objective import LossInputs, LossSums
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.step import total_loss
from tests.families.recurrent import AWD_LSTM
from tests.optional import torch
from tests.systems.modules import random_params

BATCH, LENGTH = 3, 7
RATES = {
    "embedding_dropout": 0.2,
    "input_dropout": 0.5,
    "weight_dropout": 0.4,
    "hidden_dropout": 0.3,
    "output_dropout": 0.25,
}
CONFIG = dataclasses.replace(AWD_LSTM, **RATES)
TASK = AwdLstmPretraining()
WORDS = Vocabulary.placeholder(CONFIG.vocab_size)


class Reference:
    """Torch's LSTM layers with the five dropouts as products with masks, written from section 4 of the paper."""

    def __init__(self, params: Any):
        model = params["awd_lstm"]
        self.table = torch.tensor(model["word_embeddings"]["embedding"]).requires_grad_()
        self.bias = torch.tensor(params["output_bias"]).requires_grad_()
        self.layers = []
        for number, size in enumerate(CONFIG.layer_sizes):
            ours = model[f"layer_{number}"]
            layer = torch.nn.LSTM(ours["input"]["kernel"].shape[0], size, batch_first=True)
            tensors = {
                "weight_ih_l0": ours["input"]["kernel"].reshape(-1, 4 * size).T,
                "weight_hh_l0": ours["recurrent_kernel"].reshape(-1, 4 * size).T,
                "bias_ih_l0": ours["input"]["bias"].ravel(),
                "bias_hh_l0": ours["recurrent_bias"].ravel(),
            }
            layer.load_state_dict({name: torch.tensor(np.array(tensor)) for name, tensor in tensors.items()})
            self.layers.append(layer)

    def parameters(self) -> list[torch.Tensor]:
        return [self.table, self.bias, *(p for layer in self.layers for p in layer.parameters())]

    def tree(self, read: Any) -> Any:
        """The tensors, or their gradients, as the tree of our parameters."""
        model = {"word_embeddings": {"embedding": read(self.table).numpy()}}
        for number, layer in enumerate(self.layers):
            of = {name: read(parameter).numpy() for name, parameter in layer.named_parameters()}
            kernels = (of[f"weight_{kind}_l0"].T.reshape(-1, 4, layer.hidden_size) for kind in ("ih", "hh"))
            biases = (of[f"bias_{kind}_l0"].reshape(4, -1) for kind in ("ih", "hh"))
            (inputs, recurrent), (bias, recurrent_bias) = kernels, biases
            model[f"layer_{number}"] = {
                "input": {"kernel": inputs, "bias": bias},
                "recurrent_kernel": recurrent,
                "recurrent_bias": recurrent_bias,
            }
        return {"awd_lstm": model, "output_bias": read(self.bias).numpy()}

    def loss(self, batch: Any, states: list, masks: Any = None) -> tuple[torch.Tensor, Any, list]:
        """The loss of a batch, its outputs and the states after it."""
        ids, targets = (torch.tensor(batch[name]).long() for name in ("input_ids", "next_ids"))
        ones = [torch.ones(1)] * 6
        of_rows, of_input, of_first, *others, of_output = ones if masks is None else map(torch.tensor, masks)
        of_layers, of_kernels = [of_input, *others[::2]], [of_first, *others[1::2]]
        x, after = torch.nn.functional.embedding(ids, self.table * of_rows), []
        for layer, mask, of_kernel, state in zip(self.layers, of_layers, of_kernels, states, strict=True):
            weights = dict(layer.named_parameters())
            size = layer.hidden_size
            of_kernel = of_kernel.reshape(-1, 4 * size).T if of_kernel.ndim == 3 else of_kernel
            weights["weight_hh_l0"] = weights["weight_hh_l0"] * of_kernel
            x, state = torch.func.functional_call(layer, weights, (x * mask, state))
            after.append(tuple(part.detach() for part in state))
        dropped = x * of_output
        logits = dropped @ self.table.T + self.bias
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
    return [tuple(torch.tensor(np.array(x))[None] for x in (state.output, state.cell)) for state in carry["states"]]


@pytest.fixture(scope="module")
def trained() -> tuple:
    """A training batch with dropout: parameters, carry, loss, sums, outputs, gradient, and the masks in their order."""
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
    return params, carry, batch, found, sums, outputs, gradient, jax.device_get(masks)


def test_a_training_step_equals_torch_with_the_same_masks(trained: tuple) -> None:
    params, carry, batch, found, sums, outputs, gradient, masks = trained
    model = Reference(params)
    loss, (raw, dropped, logits), after = model.loss(batch, torch_states(carry), masks)
    loss.backward()
    expected = (loss, raw, dropped, logits)
    ours = (found, outputs.raw_hidden_state, outputs.last_hidden_state, outputs.logits)
    chex.assert_trees_all_close(ours, tuple(x.detach().numpy() for x in expected), rtol=1e-5, atol=1e-5)
    states = [tuple(part[0].numpy() for part in state) for state in after]
    found = [(state.output, state.cell) for state in sums.carry["states"]]
    chex.assert_trees_all_close(found, states, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(gradient, model.tree(lambda p: p.grad), rtol=1e-4, atol=1e-5)


def test_each_dropout_drops_what_its_section_says_and_keeps_the_mean(trained: tuple) -> None:
    """Tokens of the vocabulary, recurrent weights, and features of a row; locked masks have one token."""
    *_, masks = trained
    shapes = [mask.shape for mask in masks]
    assert shapes == [(23, 1), (3, 1, 6), (10, 4, 10), (3, 1, 10), (6, 4, 6), (3, 1, 6)]
    rates = [0.2, 0.5, 0.4, 0.3, 0.4, 0.25]
    for mask, rate in zip(masks, rates, strict=True):
        values, kept = np.unique(mask.round(4)), 1 / (1 - effective_rate(rate))
        np.testing.assert_allclose(values, [0, kept], rtol=1e-3)


def test_locked_masks_are_one_mask_for_all_tokens_of_a_row(trained: tuple) -> None:
    outputs = trained[5]
    gone = np.asarray(outputs.last_hidden_state) == 0
    assert 0 < gone.mean() < 1 and (gone == gone[:, :1]).all() and (gone[0] != gone[1]).any()


def test_twenty_steps_with_carried_states_equal_torchs() -> None:
    """Clipping, weight decay and a large rate; each step goes on from the states of the one before."""
    module = AwdLstmForCausalLM(CONFIG.with_dropout(0.0))
    params, carry = random_params(module), drawn_states(1)
    model, states = Reference(params), torch_states(carry)
    optimizer = StochasticGradientDescent(learning_rate=3.0, clip_norm=0.21, weight_decay=1e-3)
    update = optimizer.build(20, params)
    state = update.init(params)
    theirs = torch.optim.SGD(model.parameters(), lr=3.0, weight_decay=1e-3)

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
        loss, _, states = model.loss(batch, states)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.21)))
        theirs.step()
        np.testing.assert_allclose(value, loss.detach(), rtol=1e-5)
    assert np.mean(np.array(norms) > 0.21) > 0.2
    chex.assert_trees_all_close(params, model.tree(torch.detach), rtol=1e-4, atol=1e-5)


def test_padding_passes_the_states_on_and_documents_begin_anew() -> None:
    module = AwdLstmForCausalLM(CONFIG)
    apply = jax.jit(functools.partial(module.apply, {"params": random_params(module)}))
    ids, states = made_batch(0)["input_ids"], drawn_states(1)["states"]
    whole = apply(ids[:, :4], states=states)
    padded = apply(ids, attention_mask=np.tile(np.arange(LENGTH) < 4, (BATCH, 1)), states=states)
    chex.assert_trees_all_close(padded.states, whole.states, atol=1e-6)
    starts = np.tile(np.arange(LENGTH) == 4, (BATCH, 1))
    np.testing.assert_allclose(apply(ids, starts=starts).logits[:, 4:], apply(ids[:, 4:]).logits, atol=1e-5)
