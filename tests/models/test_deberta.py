"""What is DeBERTa's alone: buckets of distances, both networks of version 3, what the compiled step does not have."""

import dataclasses
import functools
import math
import re
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.models.deberta.attention import log_buckets
from plmjax.models.deberta.deberta import DebertaConfig
from plmjax.models.deberta.pretraining import DebertaForPreTraining
from tests.families.modern import DEBERTA
from tests.optional import needs_torch, torch
from tests.products import equations
from tests.systems.modules import random_params

BOTH = DebertaForPreTraining(DEBERTA)
TABLE = "embeddings/word_embeddings/embedding"
RESIDUAL = "deberta/embeddings/word_embeddings/residual"
IDS = np.random.default_rng(0).integers(1, DEBERTA.vocab_size, (2, 13)).astype(np.int32)


@needs_torch
@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (9, 30), (64, 4096)])
def test_buckets_are_those_of_transformers_for_every_distance(buckets: int, longest: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = np.arange(-longest, longest + 1)
    expected = make_log_bucket_position(torch.tensor(distances), buckets, longest)
    np.testing.assert_array_equal(log_buckets(distances, buckets, longest), expected)


@functools.partial(jax.jit, static_argnums=0, static_argnames="method")
def outputs(module: nn.Module, params: Any, *inputs: Any, **settings: Any) -> Any:
    return module.apply({"params": params}, *inputs, **settings)


class Layers:
    """DeBERTa's formulas in torch, in float64, one token after the other's index: no table is shifted."""

    def __init__(self, config: DebertaConfig, params: Any, network: str) -> None:
        flat = flax.traverse_util.flatten_dict(params, sep="/")
        self.config, self.network = config, network
        self.all = {path: torch.tensor(np.array(one)).double() for path, one in flat.items()}

    def __getitem__(self, path: str) -> Any:
        return self.all[f"{self.network}/{path}"]

    def norm(self, path: str, x: Any, index: tuple[int, ...] = ()) -> Any:
        scale, bias = self[f"{path}/scale"][index], self[f"{path}/bias"][index]
        return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias, self.config.layer_norm_eps)

    def linear(self, path: str, index: tuple[int, ...], x: Any, product: str = "ti,io->to") -> Any:
        bias = self[f"{path}/bias"][index]
        return torch.einsum(product, x, self[f"{path}/kernel"][index]) + (bias if bias.ndim == 1 else bias[:, None])

    def layer(self, path: str, index: tuple[int, ...], queries: Any, source: Any) -> Any:
        """One layer: index is of its place in a stack, or empty."""
        config = self.config
        table = self.norm("encoder/relative_layer_norm", self["encoder/relative_embeddings/embedding"])
        parts = ("query", queries), ("key", source), ("value", source), ("query", table), ("key", table)
        q, k, v, distance_queries, distance_keys = (
            self.linear(f"{path}/attention/{name}", index, x, "td,dnh->nth") for name, x in parts
        )
        apart = np.arange(len(queries))[:, None] - np.arange(len(queries))
        rows = torch.tensor(log_buckets(apart, config.position_buckets, config.largest_distance))
        rows = torch.clamp(rows + config.position_buckets, 0, 2 * config.position_buckets - 1)
        scores = torch.einsum("nth,nsh->nts", q, k)
        scores = scores + torch.einsum("nth,ntsh->nts", q, distance_keys[:, rows])
        scores = scores + torch.einsum("nsh,ntsh->nts", k, distance_queries[:, rows])
        context = torch.einsum("nts,nsh->tnh", torch.softmax(scores / math.sqrt(3 * config.head_size), -1), v)
        y = queries + self.linear(f"{path}/attention/output", index, context, "tnh,nhd->td")
        x = self.norm(f"{path}/attention_layer_norm", y, index)
        y = torch.nn.functional.gelu(self.linear(f"{path}/feed_forward/intermediate", index, x))
        return self.norm(
            f"{path}/feed_forward_layer_norm", x + self.linear(f"{path}/feed_forward/output", index, y), index
        )


@needs_torch
def test_the_generator_decodes_masks_as_the_paper_says() -> None:
    """The last layer twice: queries that begin with positions, keys and values of the layer below it."""
    params = random_params(BOTH)
    found = outputs(BOTH, params, IDS, method="generate").logits
    here = Layers(DEBERTA.generator, params, "generator")
    for row, ids in enumerate(IDS):
        below = here.norm("embeddings/layer_norm", here[TABLE][ids])
        below = here.layer("encoder/layers", (0,), below, below)
        z = below + here["position_embeddings/embedding"][: len(ids)]
        for _ in range(2):
            z = here.layer("encoder/last_layer", (), z, below)
        head = "masked_language_model/"
        y = torch.nn.functional.gelu(z @ here[f"{head}transform/kernel"] + here[f"{head}transform/bias"])
        expected = here.norm(f"{head}layer_norm", y) @ here[TABLE].T + here[f"{head}bias"]
        np.testing.assert_allclose(found[row], expected.numpy(), rtol=1e-5, atol=1e-5)


@needs_torch
def test_the_discriminator_scores_tokens_beside_cls_with_the_sum_of_both_tables() -> None:
    params = random_params(BOTH)
    found = outputs(BOTH, params, IDS, method="discriminate").logits
    here = Layers(DEBERTA, params, "deberta")
    table = here.all[f"generator/{TABLE}"] + here.all[RESIDUAL]
    head, every = "replaced_token_detection/", here.all
    for row, ids in enumerate(IDS):
        x = here.norm("embeddings/layer_norm", table[ids])
        for layer in range(DEBERTA.num_hidden_layers):
            x = here.layer("encoder/layers", (layer,), x, x)
        y = x[0] + x
        scale, bias = every[f"{head}layer_norm/scale"], every[f"{head}layer_norm/bias"]
        y = torch.nn.functional.layer_norm(y, y.shape[-1:], scale, bias, DEBERTA.layer_norm_eps)
        y = torch.nn.functional.gelu(y @ every[f"{head}transform/kernel"] + every[f"{head}transform/bias"])
        expected = y @ every[f"{head}output/kernel"] + every[f"{head}output/bias"]
        np.testing.assert_allclose(found[row], expected[:, 0].numpy(), rtol=1e-5, atol=1e-5)


def test_no_gradient_passes_between_the_tables_of_the_networks() -> None:
    """The discriminator trains its residual alone, and the generator the shared table alone."""
    module = DebertaForPreTraining(dataclasses.replace(DEBERTA, num_hidden_layers=1))
    params = random_params(module)

    def gradient(method: str) -> dict[str, np.ndarray]:
        def loss(params: Any) -> jax.Array:
            return jnp.sum(jnp.sin(module.apply({"params": params}, IDS, method=method).logits))

        return flax.traverse_util.flatten_dict(jax.jit(jax.grad(loss))(params), sep="/")

    of_discriminator, of_generator = gradient("discriminate"), gradient("generate")
    for path, one in of_discriminator.items():
        assert np.any(one) != path.startswith("generator/"), path
    for path, one in of_generator.items():
        assert np.any(one) == path.startswith("generator/"), path


SEGMENTS = np.array([[1] * 5 + [2] * 5 + [0] * 3])
POSITIONS = np.array([[*range(5), *range(5), 0, 0, 0]])
STARTS = np.array([[0, 5]])


def test_both_networks_read_packed_sequences_apart() -> None:
    """The positions of the mask decoder begin anew, and each token is scored beside the [CLS] of its sequence."""
    params, packing = random_params(BOTH), {"segment_ids": SEGMENTS, "positions": POSITIONS, "cls_positions": STARTS}
    for method in ("generate", "discriminate"):
        together = outputs(BOTH, params, IDS[:1], **packing, method=method).logits[0]
        for place in (slice(0, 5), slice(5, 10)):  # of one length, for one program
            alone = outputs(BOTH, params, IDS[:1, place], method=method).logits[0]
            np.testing.assert_allclose(together[place], alone, rtol=1e-5, atol=1e-5)


def test_a_step_looks_up_words_and_predictions_and_no_pairs_of_tokens() -> None:
    """Forward and backward, no array with a number for each pair of tokens is gathered from, or scattered to."""
    config, length = dataclasses.replace(DEBERTA, max_position_embeddings=64, position_buckets=16), 61
    module, chosen = DebertaForPreTraining(config), np.zeros((2, 5), np.int32)

    def loss(params: Any, ids: jax.Array) -> jax.Array:
        generated, scored = module.apply({"params": params}, ids, masked_positions=chosen)
        return jnp.sum(generated.logits) + jnp.sum(scored.logits)

    traced = jax.make_jaxpr(jax.grad(loss))(random_params(module), np.ones((2, length), np.int32))
    looked_up = [one for _, one in equations(traced.jaxpr) if re.match("gather|scatter", one.primitive.name)]
    shapes = {one.aval.shape for equation in looked_up for one in (*equation.invars, *equation.outvars)}
    assert (2, length, DEBERTA.hidden_size) in shapes and (2, 5, DEBERTA.hidden_size) in shapes
    assert not [shape for shape in shapes if sum(axis >= length for axis in shape) > 1]
