"""Shared by the tests of every kind of task: transformers' model of one, losses, gradients, a tokenizer of numbers."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.finetuning.batches.source import ExampleRows
from plmjax.interop import huggingface
from plmjax.objectives.objective import LossInputs
from tests.optional import torch, transformers

VOCABULARY = Vocabulary.placeholder(97)


class Numbers:
    """A tokenizer of texts that are numbers already; the pieces of a word are joined by +."""

    vocabulary = VOCABULARY

    def encode(self, text):
        return self.encode_batch([text])[0]

    def encode_batch(self, texts):
        return [[int(word) for word in text.split()] for text in texts]

    def encode_words(self, sentences):
        return [[[int(piece) for piece in word.split("+")] for word in words] for words in sentences]

    def encode_spans(self, texts):
        found = [list(re.finditer(r"\d+", text)) for text in texts]
        return [
            (np.array([int(word[0]) for word in words], np.int32), np.array([word.span() for word in words], np.int32))
            for words in found
        ]


class NumbersOfGpt(Numbers):
    """With the special tokens of a decoder's rows, and the numbers of tokens as texts."""

    vocabulary = dataclasses.replace(VOCABULARY, others={"start": 90, "delimiter": 91, "extract": 92})

    def decode(self, ids):
        return " ".join(str(number) for number in ids if number != VOCABULARY.end)


def reference(folder, architecture: str, outputs: int = 2):
    """A small random model of transformers, without dropout, saved to `folder`."""
    torch.manual_seed(outputs)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=64, initializer_range=0.3, hidden_act="gelu_new", num_labels=outputs,
    )  # fmt: skip
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    model.save_pretrained(folder)
    return model


def batch(encoded, length: int, pack: int) -> dict[str, jax.Array]:
    """All examples of a file in one batch."""
    rows = ExampleRows(encoded, length, pack, pad=0)
    made = rows.batch(rows.in_order, np.arange(len(rows)))
    return {name: jnp.asarray(field) for name, field in made.items()}


def loss_and_gradient(objective, module, params, given):
    """(mean loss, its gradient, all sums), of one program."""

    def loss(params):
        sums = objective.sums(module, LossInputs(params), given, jax.random.key(0), training=False)
        return sums.losses["task"] / objective.weights(given)["task"], sums

    (found, sums), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jax.tree.map(jnp.asarray, params))
    return found, gradient, sums


def their_gradient(model, folder, architecture: str = "auto"):
    """The gradients that transformers' model holds, named and shaped as parameters are here."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    model.save_pretrained(folder)
    return huggingface.load(folder, architecture=architecture)[1]


def compared(folder, theirs, objective, *, module, params, given, rows=slice(None), **labels):
    """(loss, gradient, all sums, the outputs of transformers), where transformers computes the same of these rows."""
    their = theirs(
        input_ids=tensor(given["input_ids"][rows]),
        attention_mask=tensor(given["segment_ids"][rows] > 0),
        token_type_ids=tensor(given["token_type_ids"][rows]),
        **labels,
    )
    their.loss.backward()
    loss, gradient, sums = loss_and_gradient(objective, module, params, given)
    np.testing.assert_allclose(loss, their.loss.item(), rtol=1e-5)
    assert_same_gradient(gradient, their_gradient(theirs, folder / "gradient"))
    return loss, gradient, sums, their


def assert_same_packed(objective, module, params, *, packed, loss, gradient):
    """That packed rows lose the same and have the same gradient."""
    packed_loss, packed_gradient, _ = loss_and_gradient(objective, module, params, packed)
    np.testing.assert_allclose(packed_loss, loss, rtol=1e-5)
    assert_same_gradient(packed_gradient, gradient)


def assert_same_gradient(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for path, leaf in jax.tree_util.tree_leaves_with_path(first):
        other = np.asarray(dict(jax.tree_util.tree_leaves_with_path(second))[path])
        np.testing.assert_allclose(leaf, other, atol=1e-4, err_msg=jax.tree_util.keystr(path))


def tensor(field) -> torch.Tensor:
    return torch.tensor(np.asarray(field)).long()
