"""CoVe's translation model against torch's own layers, and what its rows and its state must be."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.writer import Settings, Writer
from plmjax.layers.recurrent.lstm import LstmState
from plmjax.models.cove.cove import (
    SYSTEM,
    CoveConfig,
    CoveForTranslation,
    DecoderState,
    DecoderStep,
    EncodedSource,
    MtLstm,
)
from plmjax.vocabulary import Vocabulary
from tests.optional import torch
from tests.products import step_flops
from tests.systems.modules import boxed_shapes, dropped, outputs, random_params

CONFIG = CoveConfig(vocab_size=19, vector_size=6, hidden_size=5, dropout=0.0)
SIZE, LENGTHS, TARGET_LENGTHS = CONFIG.width, [7, 4, 1], [5, 6, 2]
RANDOM = np.random.default_rng(3)
IDS, TARGETS, NEXT = (RANDOM.integers(0, 19, (3, length), np.int32) for length in (7, 6, 6))
MASK, TARGET_MASK = (
    (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32)
    for length, lengths in ((7, LENGTHS), (6, TARGET_LENGTHS))
)
BATCH = {
    "input_ids": IDS,
    "attention_mask": MASK,
    "decoder_input_ids": TARGETS,
    "decoder_attention_mask": TARGET_MASK,
}
ROWS = {"input_ids": IDS, "decoder_input_ids": TARGETS, "segment_ids": MASK, "decoder_segment_ids": TARGET_MASK}
"""The same as a task makes them."""


def test_published_sizes_have_their_parameters() -> None:
    module = CoveConfig.original().module(Purpose.PRETRAINING, Execution())
    shapes = flax.traverse_util.flatten_dict(boxed_shapes(module), sep="/")
    sizes = {name: leaf.value.size for name, leaf in shapes.items()}
    assert sum(size for name, size in sizes.items() if name.startswith("cove/layer_")) == 3_609_600
    assert sum(size for name, size in sizes.items() if name.startswith("decoder/step/")) == 7_569_600


def test_words_begin_as_zero_vectors_and_all_else_uniform() -> None:
    module = CoveForTranslation(CoveConfig.tiny(vocab_size=300, num_layers=1))
    params = jax.jit(module.init)(jax.random.key(0), IDS, decoder_input_ids=TARGETS)["params"]
    for name, leaf in flax.traverse_util.flatten_dict(params, sep="/").items():
        values = np.asarray(leaf.unbox())
        bound = 0.0 if name == SYSTEM.token_table else 0.1
        assert bound * 0.9 <= np.abs(values).max() <= bound, name


class Reference:
    """The model in torch's layers, from section 3 of the paper: texts one by one, without any padding."""

    def __init__(self, general: bool, layers: int):
        self.source, self.target = torch.nn.Embedding(19, 6), torch.nn.Embedding(19, 6)
        self.encoder = torch.nn.LSTM(6, 5, num_layers=layers, bidirectional=True)
        self.cells = [torch.nn.LSTMCell(inputs, SIZE) for inputs in (6 + SIZE, SIZE)[:layers]]
        self.query = torch.nn.Linear(SIZE, SIZE, bias=False) if general else torch.nn.Identity()
        self.output = torch.nn.Linear(2 * SIZE, SIZE, bias=False)
        self.generator = torch.nn.Linear(SIZE, 19)

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int [S] and int [T] -> the encoder's output [S D] and logits [T V]."""
        encoded, (last, cell) = self.encoder(self.source(source))
        states = [
            tuple(part[2 * layer : 2 * layer + 2].flatten() for part in (last, cell))
            for layer in range(len(self.cells))
        ]
        spoken, logits = torch.zeros(SIZE), []
        for word in self.target(target):
            x = torch.cat([word, spoken])
            for layer, own in enumerate(self.cells):
                states[layer] = own(x, states[layer])
                x = states[layer][0]
            context = torch.softmax(encoded @ self.query(x), dim=0) @ encoded
            spoken = torch.tanh(self.output(torch.cat([context, x])))
            logits.append(self.generator(spoken))
        return encoded, torch.stack(logits)

    def tree(self, read: Any) -> dict[str, Any]:
        """The tensors, or their gradients, as the tree of our parameters."""

        def lstm(layer: torch.nn.Module, suffix: str, size: int) -> dict[str, Any]:
            of = {
                name: read(getattr(layer, f"{name}{suffix}")).numpy()
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            }
            return {
                "input": {
                    "kernel": of["weight_ih"].T.reshape(-1, 4, size),
                    "bias": of["bias_ih"].reshape(4, size),
                },
                "recurrent_kernel": of["weight_hh"].T.reshape(-1, 4, size),
                "recurrent_bias": of["bias_hh"].reshape(4, size),
            }

        cove: dict[str, Any] = {"words": {"embedding": read(self.source.weight).numpy()}}
        for layer in range(len(self.cells)):
            directions = {"forward": f"_l{layer}", "backward": f"_l{layer}_reverse"}
            cove[f"layer_{layer}"] = {name: lstm(self.encoder, suffix, 5) for name, suffix in directions.items()}
        attention = {"output": {"kernel": read(self.output.weight).numpy().T}}
        if isinstance(self.query, torch.nn.Linear):
            attention["query"] = {"kernel": read(self.query.weight).numpy().T}
        step = {f"layer_{layer}": lstm(cell, "", SIZE) for layer, cell in enumerate(self.cells)}
        return {
            "cove": cove,
            "decoder": {
                "words": {"embedding": read(self.target.weight).numpy()},
                "step": step | {"attention": attention},
            },
            "generator": read(self.generator.weight).numpy(),
            "generator_bias": read(self.generator.bias).numpy(),
        }


@pytest.mark.parametrize(("attention", "layers"), [("general", 2), ("dot", 1)])
def test_padded_rows_equal_torch_without_padding(attention: str, layers: int) -> None:
    """Outputs of both sides, and the gradients of all parameters."""
    torch.manual_seed(0)
    model = Reference(attention == "general", layers)
    encoded, logits = np.zeros((3, 7, SIZE), np.float32), np.zeros((3, 6, 19), np.float32)
    loss = torch.zeros(())
    for row, (length, target_length) in enumerate(zip(LENGTHS, TARGET_LENGTHS, strict=True)):
        read, written = model(torch.tensor(IDS[row, :length]), torch.tensor(TARGETS[row, :target_length]))
        encoded[row, :length], logits[row, :target_length] = read.detach(), written.detach()
        following = torch.tensor(NEXT[row, :target_length]).long()
        loss = loss + torch.nn.functional.cross_entropy(written, following, reduction="sum")
    loss.backward()
    module = CoveForTranslation(dataclasses.replace(CONFIG, attention=attention, num_layers=layers))

    def nats(params: Any) -> tuple[jax.Array, Any]:
        output = module.apply({"params": params}, **ROWS)
        value, _ = output.scores.weighted_cross_entropy(NEXT, TARGET_MASK.astype(np.float32))
        return value, (output.encoder_last_hidden_state, output.logits)

    (found, (read, written)), gradient = jax.jit(jax.value_and_grad(nats, has_aux=True))(model.tree(torch.detach))
    np.testing.assert_allclose(found, loss.detach(), rtol=1e-5)
    np.testing.assert_allclose(read, encoded, atol=1e-5)
    np.testing.assert_allclose(written * TARGET_MASK[..., None], logits, atol=1e-5)
    chex.assert_trees_all_close(gradient, model.tree(lambda tensor: tensor.grad), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def params() -> Any:
    return jax.tree.map(lambda leaf: 3 * leaf, random_params(CoveForTranslation(CONFIG)))


def test_no_output_depends_on_padding_or_on_what_follows_in_the_target(params: Any) -> None:
    module = CoveForTranslation(CONFIG)
    found = outputs(module, params, BATCH)
    other = np.where(MASK == 0, 7, IDS), np.where(TARGET_MASK == 0, 7, TARGETS)
    same = outputs(module, params, BATCH | dict(zip(("input_ids", "decoder_input_ids"), other, strict=True)))
    np.testing.assert_array_equal(found.logits[TARGET_MASK > 0], same.logits[TARGET_MASK > 0])
    changed = TARGETS.copy()
    changed[:, 3] = (TARGETS[:, 3] + 1) % 19
    later = outputs(module, params, BATCH | {"decoder_input_ids": changed})
    np.testing.assert_array_equal(found.logits[:, :3], later.logits[:, :3])
    assert np.abs(found.logits - later.logits)[:2, 3:5].max(axis=-1).min() > 1e-4  # and the fed state tells the rest


def test_the_state_passes_by_padding_in_a_target(params: Any) -> None:
    """Of the cells and of what is fed: padding between two words, and behind them, changes nothing."""
    module = CoveForTranslation(CONFIG)
    short = {name: field[:1] for name, field in BATCH.items()} | {
        "decoder_input_ids": TARGETS[:1, :2],
        "decoder_attention_mask": np.ones((1, 2), np.int32),
    }
    ids = np.insert(np.append(TARGETS[:1, :2], [[7]], axis=1), 1, 7, axis=1)
    padded = outputs(
        module, params, short | {"decoder_input_ids": ids, "decoder_attention_mask": np.array([[1, 0, 1, 0]])}
    )
    expected = outputs(module, params, short)
    np.testing.assert_allclose(padded.logits[:, [0, 2]], expected.logits, atol=1e-6)
    chex.assert_trees_all_close(padded.cache, expected.cache, atol=1e-6)


def test_the_texts_of_a_beam_search_have_the_probability_of_reading_them_at_once(params: Any) -> None:
    """Beams share a source, change places, and go on from the state of the cells."""
    vocabulary = Vocabulary(19, pad=0, begin=2, end=3)
    writer = Writer(CONFIG, params, vocabulary)
    settings = Settings(BeamSearch(3, sequences=3), max_new_tokens=5, batch_size=3)
    prompts = [IDS[row, :length].tolist() for row, length in enumerate(LENGTHS)]
    texts = writer(prompts, settings)
    found = [text for own in texts for text in own]
    assert all(len({tuple(text.tokens) for text in own}) == 3 for own in texts) and len({*map(str, texts)}) == 3
    asked = np.zeros((9, 5), np.int32)
    for row, text in zip(asked, found, strict=True):
        row[: len(text.tokens)] = text.tokens
    batch = {"input_ids": np.repeat(IDS, 3, axis=0), "attention_mask": np.repeat(MASK, 3, axis=0)}
    given = np.concatenate([np.full((9, 1), CONFIG.decoder_start_token_id), asked[:, :-1]], axis=1)
    logits = outputs(CoveForTranslation(CONFIG), params, batch | {"decoder_input_ids": given}).logits
    nats = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), asked[..., None], axis=-1)[..., 0]
    for row, text in zip(nats, found, strict=True):
        np.testing.assert_allclose(text.log_probability, row[: len(text.tokens)].sum(), rtol=1e-5)


def test_the_encoder_reads_packed_texts_and_both_texts_of_a_pair_each_by_itself(params: Any) -> None:
    encoder = MtLstm(CONFIG)
    apply = jax.jit(functools.partial(encoder.apply, {"params": params["cove"]}, output_hidden_states=True))
    alone = [apply(IDS[:, part]).last_hidden_state for part in (slice(0, 3), slice(3, 5), slice(5, 7))]
    numbers = np.tile([1, 1, 1, 2, 2, 2, 2], (3, 1))
    packed = apply(IDS, segment_ids=numbers, token_type_ids=np.tile([0, 0, 0, 0, 0, 1, 1], (3, 1)))
    np.testing.assert_allclose(packed.last_hidden_state, jnp.concatenate(alone, axis=1), atol=1e-6)
    assert [layer.shape[-1] for layer in packed.hidden_states] == [6, SIZE, SIZE]
    np.testing.assert_array_equal(packed.hidden_states[0], params["cove"]["words"]["embedding"][IDS])


def test_dropout_falls_on_both_sides(params: Any) -> None:
    module = CoveForTranslation(dataclasses.replace(CONFIG.with_dropout(0.5), num_layers=1))
    found = dropped(module, params, BATCH)
    gone, spoken = (np.asarray(x) == 0 for x in (found.encoder_last_hidden_state[0], found.last_hidden_state[0, :5]))
    assert 0.2 < gone.mean() < 0.8 and 0.2 < spoken.mean() < 0.8 and (spoken[0] != spoken[1]).any()


def test_a_step_of_the_decoder_drops_its_inputs_twice(params: Any) -> None:
    """A number of the word, or of what was spoken before, is kept by two draws: no gradient comes to the others."""
    config, rows = dataclasses.replace(CONFIG.with_dropout(0.5), num_layers=1), 200
    random = np.random.default_rng(0)
    word, fed, state = (random.normal(size=(rows, size)).astype(np.float32) for size in (6, SIZE, SIZE))
    source = EncodedSource(random.normal(size=(1, 3, SIZE)).astype(np.float32), np.ones((1, 3), bool), ())
    step = {"params": {name: params["decoder"]["step"][name] for name in ("layer_0", "attention")}}

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
    def read(word: jax.Array, fed: jax.Array) -> Any:
        inputs = DecoderState((LstmState(state, state),), fed), word, np.ones(rows, bool), source, False
        _, spoken = DecoderStep(config, Execution()).apply(step, *inputs, rngs={"dropout": jax.random.key(0)})
        return jnp.sum(spoken), spoken

    gradients, spoken = read(word, fed)
    for found in gradients:
        assert np.mean(found == 0) == pytest.approx(0.75, abs=0.06)
    assert np.mean(spoken == 0) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("hidden_size", 0, "Expected --model.hidden_size of at least 1, found 0; change it."),
        ("attention", "dots", "Expected a known --model.attention, found 'dots'; did you mean 'dot'?"),
    ],
)
def test_settings_out_of_range_are_one_sentence(field: str, value: Any, said: str) -> None:
    with pytest.raises(UserError) as raised:
        CoveConfig(**{field: value})
    assert said in str(raised.value)


@pytest.mark.parametrize("attention", ["general", "dot"])
def test_train_flops_are_those_of_the_products(attention: str) -> None:
    config = dataclasses.replace(CONFIG, attention=attention, num_layers=2)
    sides = {"input_ids": np.zeros((3, 17), np.int32), "decoder_input_ids": np.zeros((3, 13), np.int32)}
    found = step_flops(
        config.module(Purpose.PRETRAINING, Execution()), lambda outputs: outputs.scores.logits(), **sides
    )
    assert config.train_flops(3, 17, 13) == found
    assert config.train_flops(3, 17, 0) == step_flops(
        config.module(Purpose.ENCODING, Execution()), input_ids=sides["input_ids"]
    )
