"""Properties of BERT, RoBERTa, ELECTRA, ModernBERT and ALBERT."""

import dataclasses
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.interop import modernbert as interop
from plmjax.models.albert import AlbertConfig, AlbertForPreTraining, AlbertModel
from plmjax.models.bert import BertConfig, BertForPreTraining
from plmjax.models.compressed.configs import CompressedBertConfig, CompressedElectraConfig
from plmjax.models.electra import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForReplacedTokenDetection,
)
from plmjax.models.modernbert.encoder import GLOBAL, LOCAL
from plmjax.models.modernbert.eurobert import EuroBertConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.models.roberta import RobertaForMaskedLM, RobertaModel
from plmjax.training.optimizers import BertAdamW, Lamb, Optimizer
from plmjax.training.optimizers.schedules import Constant
from tests.families.encoders import ALBERT, ELECTRA, ROBERTA
from tests.families.family import random_tokens
from tests.families.modern import MODERNBERT
from tests.systems.modules import boxed_shapes, count, initial_params, outputs, random_params


@pytest.mark.nightly
def test_every_layer_is_drawn_for_itself() -> None:
    params = initial_params(BertForPreTraining(BertConfig.mini(vocab_size=2000)))
    kernel = params["bert"]["encoder"]["layers"]["feed_forward"]["output"]["kernel"]
    assert len({layer.tobytes() for layer in np.asarray(kernel)}) == 4


def test_groups_of_layers_that_differ_are_stacks_of_one_layer_each() -> None:
    """From the bottom to the top: the embeddings, each layer, and the pooler with all that is left."""
    unlike = CompressedBertConfig.tiny(layer_heads=(1, 2), layer_widths=(3, 4))
    names = "bert/embeddings", "bert/encoder/layer_0", "bert/encoder/layer_1", "bert"
    assert [(group.prefixes, group.index) for group in unlike.parameter_groups] == [
        ((name,), 0 if "layer" in name else None) for name in names
    ]
    assert unlike.layer_sizes == ((1, 3), (2, 4)) and CompressedBertConfig.tiny().layer_sizes == ((2, 512),) * 2


def test_positions_are_counted_from_behind_the_padding_token() -> None:
    """As published: the k-th real token takes row k + padding id, padding the row of that id, wherever it stands."""
    ids = jnp.array([[3, 3, 9, 8, 3, 7], [5, 6, 7, 8, 9, 3]])
    published = [[3, 3, 4, 5, 3, 6], [4, 5, 6, 7, 8, 3]]
    given = jnp.array([[0, 0, 0, 1, 0, 2], [0, 1, 2, 0, 1, 0]])
    packed = [[3, 3, 4, 5, 3, 6], [4, 5, 6, 4, 5, 3]]
    model = RobertaModel(ROBERTA)
    np.testing.assert_array_equal(model.position_rows(ids, None), published)
    np.testing.assert_array_equal(model.position_rows(ids, given), packed)


def test_heads_that_predict_words_have_always_the_exact_gelu() -> None:
    """Deviation named in the modules: of RoBERTa, and of the generator of ELECTRA alone."""
    module = RobertaForMaskedLM(dataclasses.replace(ROBERTA, hidden_act="relu")).bind({})
    assert (module.masked_language_model.config.hidden_act, module.encoder.config.hidden_act) == ("gelu", "relu")
    module = ElectraForPreTraining(dataclasses.replace(ELECTRA, hidden_act="relu")).bind({})
    heads = module.masked_language_model.config, module.replaced_token_detection.config, module.generator.config
    assert [config.hidden_act for config in heads] == ["gelu", "relu", "relu"]


INPUTS = random_tokens(ELECTRA)


def test_the_two_networks_share_their_embeddings_and_nothing_else() -> None:
    params = random_params(ElectraForPreTraining(ELECTRA))
    alone = {
        "discriminator": boxed_shapes(ElectraForReplacedTokenDetection(ELECTRA)),
        "generator": boxed_shapes(ElectraForMaskedLM(ELECTRA)),
    }
    paths = {name: set(flax.traverse_util.flatten_dict(tree, sep="/")) for name, tree in alone.items()}
    assert set(flax.traverse_util.flatten_dict(params, sep="/")) == paths["discriminator"] | paths["generator"]
    shared = paths["discriminator"] & paths["generator"]
    assert shared and all(path.startswith("electra/embeddings/") for path in shared)

    generated, scored = outputs(ElectraForPreTraining(ELECTRA), params, INPUTS)
    np.testing.assert_array_equal(generated.logits, outputs(ElectraForMaskedLM(ELECTRA), params, INPUTS).logits)
    alone = outputs(ElectraForReplacedTokenDetection(ELECTRA), params, INPUTS)
    np.testing.assert_array_equal(scored.logits, alone.logits)
    encoder = ELECTRA.module(Purpose.ENCODING, Execution())
    hidden = outputs(encoder, params[encoder.name], INPUTS).last_hidden_state
    np.testing.assert_array_equal(hidden, scored.last_hidden_state)


def test_the_generator_of_a_generator_is_itself() -> None:
    assert ELECTRA.generator.generator == ELECTRA.generator
    assert count(ElectraForMaskedLM(ELECTRA)) == count(ElectraForMaskedLM(ELECTRA.generator))


def test_a_generator_has_a_quarter_of_the_width_a_head_for_64_features_and_whole_matrices() -> None:
    def sizes(**changes: int) -> tuple[int, ...]:
        network = CompressedElectraConfig.base(generator_hidden_size=0, ranks=(3,) * 6, **changes).generator
        assert type(network) is ElectraConfig
        return network.hidden_size, network.num_attention_heads, network.intermediate_size

    assert sizes() == (192, 3, 768)
    assert sizes(hidden_size=120) == (30, 1, 120)
    assert sizes(generator_num_attention_heads=6, generator_intermediate_size=100) == (192, 6, 100)


def test_every_third_layer_is_global_and_layers_of_a_kind_are_stacks() -> None:
    base = ModernBertConfig.base()
    assert base.layer_kinds == (GLOBAL, LOCAL, LOCAL) * 7 + (GLOBAL,)
    runs = [(run.name, run.kinds, run.repetitions, run.first) for run in base.layer_runs]
    assert runs == [("first_layers", (GLOBAL,), 1, 0), ("layers", (LOCAL, LOCAL, GLOBAL), 7, 1)]
    six = dataclasses.replace(base, num_hidden_layers=6).layer_runs
    assert [(run.name, run.kinds, run.first) for run in six][1:] == [
        ("layers", (LOCAL, LOCAL, GLOBAL), 1),
        ("last_layers", (LOCAL, LOCAL), 4),
    ]
    assert [(run.name, run.kinds, run.repetitions) for run in EuroBertConfig.base().layer_runs] == [
        ("layers", (GLOBAL,), 12)
    ]


def test_the_mean_of_packed_sequences_is_that_of_each() -> None:
    config = dataclasses.replace(MODERNBERT, classifier_pooling="mean")
    module = config.module(Purpose.ENCODING, Execution(), pooling=True)
    ids, segments = np.arange(10, dtype=np.int32)[None] + 6, np.array([[1] * 4 + [2] * 5 + [0]])
    inputs = {"segment_ids": segments, "positions": np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]])}
    params = random_params(module)
    output = outputs(module, params, {"input_ids": ids, **inputs, "cls_positions": np.array([[0, 4]])})
    own = output.last_hidden_state[0]
    np.testing.assert_allclose(output.pooler_output[0], [own[:4].mean(0), own[4:9].mean(0)], rtol=1e-5, atol=1e-5)


OLD = {
    "model_type": "modernbert", "vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3,
    "intermediate_size": 37, "max_position_embeddings": 19, "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "local_attention": 6, "pad_token_id": 3,
    "attention_dropout": 0.0, "classifier_pooling": "mean",
}  # fmt: skip


def test_both_forms_of_a_config_are_read() -> None:
    """Deviation: the output of attention keeps the paper's dropout, which config.json cannot say."""
    old = interop.read_config(OLD)
    assert old.attention_output_dropout == 0.1 and old.attention_dropout == 0.0 and old.classifier_pooling == "mean"
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    rope = {"full_attention": {"rope_theta": 160000.0}, "sliding_attention": {"rope_theta": 10000.0}}
    new = {name: value for name, value in OLD.items() if "rope" not in name and "every" not in name}
    assert interop.read_config(new | {"layer_types": kinds, "rope_parameters": rope}) == old
    other = interop.read_config(new | {"layer_types": ["full_attention"] * 4, "rope_parameters": rope})
    assert other.global_attn_every_n_layers == 1


def test_layers_are_divided_into_groups_as_evenly_as_they_can_be() -> None:
    assert AlbertConfig.base().group_sizes == (12,)
    assert AlbertConfig.base(num_hidden_groups=4).group_sizes == (3, 3, 3, 3)
    assert AlbertConfig.base(num_hidden_groups=12).group_sizes == (1,) * 12
    five = [AlbertConfig.base(num_hidden_layers=5, num_hidden_groups=groups).group_sizes for groups in (2, 3, 4)]
    assert five == [(3, 2), (2, 2, 1), (2, 1, 1, 1)]


def test_a_bert_with_shared_layers_has_all_its_settings() -> None:
    bert = BertConfig.tiny(
        vocab_size=77, hidden_size=64, hidden_act="relu", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2,
        max_position_embeddings=31, type_vocab_size=3, initializer_range=0.05, layer_norm_eps=1e-3, pad_token_id=4,
        attention_window=6, classifier_dropout=0.4,
    )  # fmt: skip
    shared = AlbertConfig.of_bert(bert, groups=2)
    same = {field.name for field in dataclasses.fields(bert)} - {"classifier_dropout"}
    assert {name: getattr(shared, name) for name in same} == {name: getattr(bert, name) for name in same}
    assert (shared.embedding_size, shared.num_hidden_groups, shared.classifier_dropout_prob) == (64, 2, 0.4)


def test_dropout_differs_from_trip_to_trip() -> None:
    """With one mask for all layers, two layers of zero weights would leave the same tokens' features out."""
    config = dataclasses.replace(ALBERT, num_hidden_layers=2, hidden_dropout_prob=0.5)
    module = AlbertModel(config)
    params = random_params(module)
    layer = params["encoder"]["group_0"]["layer_0"]
    layer["attention"]["output"] = jax.tree.map(jnp.zeros_like, layer["attention"]["output"])
    layer["feed_forward"]["output"]["kernel"] *= 0
    layer["feed_forward"]["output"]["bias"] = jnp.full(24, 1e6)

    @jax.jit
    def hidden_states(params: Any) -> jax.Array:
        rngs, inputs = {"dropout": jax.random.key(0)}, random_tokens(ALBERT)["input_ids"]
        found = module.apply({"params": params}, inputs, deterministic=False, rngs=rngs, output_hidden_states=True)
        return found.hidden_states

    states = np.asarray(hidden_states(params))
    centred = (states[1:] - layer["feed_forward_layer_norm"]["bias"]) / layer["feed_forward_layer_norm"]["scale"]
    first, second = np.asarray(centred > 0)
    assert 0.3 < (first != second).mean() < 0.7


def test_the_map_into_the_layers_is_there_when_it_changes_no_size() -> None:
    """Deviation named in the module: with E = D too."""
    for size in (11, 24):
        params = boxed_shapes(AlbertModel(dataclasses.replace(ALBERT, embedding_size=size)))
        assert params["encoder"]["embedding_hidden_mapping_in"]["kernel"].value.shape == (size, 24)


def test_lamb_gives_the_shared_parameters_one_trust_ratio() -> None:
    """All L uses of a kernel are one parameter: its update is one multiple of what it would be without a ratio."""
    module = AlbertForPreTraining(ALBERT)
    boxed = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    params, gradients = random_params(module), random_params(module, seed=3)

    def update(optimizer: type[Optimizer]) -> Any:
        rule = optimizer(learning_rate=1.0, schedule=Constant()).build(10, boxed)
        updates = jax.jit(lambda gradients, params: rule.update(gradients, rule.init(params), params)[0])(
            gradients, params
        )
        return updates["albert"]["encoder"]["group_0"]["layer_0"]["feed_forward"]["intermediate"]["kernel"]

    plain = update(BertAdamW)
    kernel = params["albert"]["encoder"]["group_0"]["layer_0"]["feed_forward"]["intermediate"]["kernel"]
    ratio = jnp.linalg.norm(kernel) / jnp.linalg.norm(plain)
    assert abs(ratio - 1) > 0.1
    np.testing.assert_allclose(update(Lamb), ratio * plain, rtol=1e-5)
