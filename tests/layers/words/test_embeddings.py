"""Ids that a table has no row for, an error where they are known and no trace in a compiled program; and the gradients
of small tables.
"""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.layers.words import embeddings
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.electra import ElectraConfig
from plmjax.models.roberta import RobertaConfig
from plmjax.parallel import sharding
from tests.families.family import LENGTH, ROWS, SIZES, random_tokens
from tests.systems.modules import random_params

CONFIGS = {
    "bert": BertConfig(**SIZES, max_position_embeddings=19),
    "roberta": RobertaConfig(**SIZES, max_position_embeddings=21),
    "albert": AlbertConfig(**SIZES, max_position_embeddings=19, embedding_size=14),
    "electra": ElectraConfig(**SIZES, max_position_embeddings=19, embedding_size=14),
}
MISTAKES = [
    ("input_ids", 53, "ids from 0 to 52 for the 53 rows of word_embeddings, found 53; "),
    ("input_ids", 31000, "the 53 rows of word_embeddings, found 31000; "),
    ("input_ids", -1, "the 53 rows of word_embeddings, found -1; "),
    ("token_type_ids", 3, "ids from 0 to 2 for the 3 rows of token_type_embeddings, found 3; "),
    ("token_type_ids", -2, "the 3 rows of token_type_embeddings, found -2; "),
    ("positions", 19, r"rows of position_embeddings, found (19|21); "),
]


@pytest.mark.parametrize(
    "system", [pytest.param(name, marks=() if name == "roberta" else pytest.mark.nightly) for name in CONFIGS]
)
def test_an_id_without_a_row_is_named(system):
    module = CONFIGS[system].module(Purpose.ENCODING, Execution())
    params = jax.tree.map(
        lambda shape: np.zeros(shape.shape, shape.dtype),
        jax.eval_shape(lambda: nn.meta.unbox(module.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]),
    )
    for field, value, sentence in MISTAKES:
        batch = random_tokens(module.config) | {"positions": np.tile(np.arange(LENGTH), (ROWS, 1))}
        batch[field][1, 2] = value
        for array in (np.asarray, jnp.asarray):
            with pytest.raises(UserError, match=sentence) as error:
                module.apply({"params": params}, **{name: array(inputs) for name, inputs in batch.items()})
            assert "\n" not in str(error.value)


def test_a_loaded_model_names_an_id_beyond_its_table(tmp_path):
    """As someone calls it who brought the ids of another tokenizer."""
    model = CONFIGS["bert"].module(Purpose.MASKED_TOKENS, Execution())
    huggingface.save(model, random_params(model), tmp_path)
    model, params = huggingface.load(tmp_path)
    with pytest.raises(UserError, match="53 rows of word_embeddings, found 28995"):
        model.apply({"params": params}, np.array([[2, 28995, 3]]))
    with pytest.raises(UserError, match="53 rows of word_embeddings, found 28995"):
        jax.grad(lambda params: model.apply({"params": params}, np.array([[2, 28995]])).logits.sum())(params)


def test_the_compiled_program_is_that_of_a_lookup_alone():
    """Nothing waits for the ids or compares them: the whole program is the one gather."""
    table = Embedding(7, 4, None, jax.nn.initializers.normal(), name="table")
    params = table.init(jax.random.key(0), jnp.zeros((1,), jnp.int32))
    looked_up = jax.jit(lambda params, ids: table.apply(params, ids))
    ids = jnp.arange(6).reshape(2, 3)
    plain = jax.jit(lambda params, ids: jnp.take(params["params"]["embedding"].value, ids, axis=0, mode="clip"))
    programs = [one.lower(params, ids).as_text() for one in (looked_up, plain)]
    assert programs[0] == programs[1] and "gather" in programs[0] and "callback" not in programs[0]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.usefixtures("platform")
def test_the_gradient_of_a_few_rows_equals_the_sum_row_by_row(dtype):
    """Also where it is a product. Ids without a row count for the nearest one, as in the lookup; sums are float32."""
    rows, ids = jnp.ones((5, 4)), jnp.array([[0, 4, 2, 2], [-3, 9, 2, 1]])
    cotangent = jax.random.normal(jax.random.key(0), (2, 4, 4), dtype)
    table = Embedding(5, 4, None, jax.nn.initializers.normal(), dtype, name="table")
    looked_up = lambda rows, ids: table.apply({"params": {"embedding": rows}}, ids)  # noqa: E731
    plain = lambda rows, ids: jnp.take(rows, ids, axis=0, mode="clip").astype(dtype)  # noqa: E731
    found, expected = (
        jax.jit(lambda rows, ids, one=one: jax.vjp(lambda rows: one(rows, ids), rows)[1](cotangent)[0])(rows, ids)
        for one in (looked_up, plain)
    )
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("rows", [embeddings.FEW, embeddings.FEW + 1])
def test_a_tpu_adds_the_gradients_of_few_rows_by_a_product(platform, rows):
    table = Embedding(rows, 4, None, jax.nn.initializers.normal(), name="table")
    params = table.init(jax.random.key(0), jnp.zeros((1,), jnp.int32))
    gradient = jax.jit(jax.grad(lambda params, ids: table.apply(params, ids).sum()))
    program = gradient.trace(params, jnp.arange(6)).lower(lowering_platforms=(platform,)).as_text()
    multiplied = platform == "tpu" and rows == embeddings.FEW
    assert ("dot_general" in program, "scatter" in program) == (multiplied, not multiplied)


def test_devices_sum_the_gradient_of_few_rows_and_exchange_no_tokens():
    """Every device then keeps some rows."""
    mesh = Mesh(np.array(jax.devices()).reshape(8, 1, 1), ("data", "fsdp", "tensor"))
    divided = NamedSharding(mesh, PartitionSpec("data"))
    shapes = [
        jax.ShapeDtypeStruct(*one, sharding=divided) for one in (((64, 32), jnp.int32), ((64, 32, 16), jnp.float32))
    ]
    gradient = sharding.with_mesh(functools.partial(embeddings._one_hot_gradient, jnp.zeros((8, 16))), mesh)
    program = jax.jit(gradient, out_shardings=divided).lower(*shapes).compile().as_text()
    assert "all-reduce" in program and not re.search("all-gather|all-to-all|permute", program)
