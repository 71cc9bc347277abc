"""What is ModernBERT's alone: kinds of layers, windows, thetas, both forms of its config, what its pooling means."""

import dataclasses

import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.interop import modernbert as interop
from plmjax.models.modernbert.encoder import GLOBAL, LOCAL, ModernBertModel
from plmjax.models.modernbert.eurobert import EuroBertConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig
from tests.families.modern import MODERNBERT
from tests.systems.modules import outputs, random_params


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


def hidden(config: ModernBertConfig, params: dict, ids: np.ndarray, **inputs: np.ndarray) -> np.ndarray:
    return outputs(ModernBertModel(config), params, {"input_ids": ids, **inputs}).last_hidden_state


def seen_from_the_middle(window: int) -> list[int]:
    """The tokens whose change reaches the middle token, of a local layer behind a layer that reads no other token."""
    config = dataclasses.replace(MODERNBERT, num_hidden_layers=2, local_attention=window)
    params = random_params(ModernBertModel(config))
    params["first_layers"]["layer_0"]["attention"]["output"]["kernel"] *= 0  # the global layer passes nothing on
    ids = np.arange(17, dtype=np.int32)[None] + 6
    before = hidden(config, params, ids)[0, 8]
    changed = (ids + 20 * np.eye(17, dtype=np.int32)).astype(np.int32)
    after = hidden(config, params, changed)[:, 8]
    return np.flatnonzero(np.abs(after - before).max(-1) > 1e-6).tolist()


@pytest.mark.parametrize("window", [2, 6])
def test_a_window_holds_a_key_more_than_its_number(window: int) -> None:
    """Deviation: of the released code from the paper; transformers' outputs are compared in tests/systems."""
    half = window // 2
    assert seen_from_the_middle(window) == list(range(8 - half, 9 + half))


@pytest.mark.nightly
def test_windows_of_packed_rows_are_those_of_separate_rows() -> None:
    """Rows of 1,024 tokens with windows of 128, computed in bands, equal the sequences read alone and a dense mask."""
    config = dataclasses.replace(MODERNBERT, max_position_embeddings=1024, local_attention=128)
    params, random = random_params(ModernBertModel(config)), np.random.default_rng(0)
    lengths = (500, 300, 180)
    sequences = [random.integers(6, 53, length).astype(np.int32) for length in lengths]
    packed, segments, positions = (np.zeros((1, 1024), np.int32) for _ in range(3))
    start = 0
    for number, sequence in enumerate(sequences, start=1):
        place = slice(start, start + len(sequence))
        packed[0, place], segments[0, place], positions[0, place] = sequence, number, np.arange(len(sequence))
        start += len(sequence)
    together = hidden(config, params, packed, segment_ids=segments, positions=positions)
    start = 0
    for sequence in sequences:
        alone = hidden(config, params, sequence[None])[0]
        np.testing.assert_allclose(together[0, start : start + len(sequence)], alone, rtol=1e-4, atol=1e-4)
        start += len(sequence)


def test_thetas_are_those_of_their_kinds_of_layers() -> None:
    """The parameters do not depend on them: a phase may change them."""
    ids = np.arange(12, dtype=np.int32)[None] + 6
    both = dataclasses.replace(MODERNBERT, num_hidden_layers=2)
    params = random_params(ModernBertModel(both))
    before = hidden(both, params, ids)
    for name in ("global_rope_theta", "local_rope_theta"):
        changed = dataclasses.replace(both, **{name: 500.0})
        assert np.abs(hidden(changed, params, ids) - before).max() > 1e-3
    only = dataclasses.replace(both, global_attn_every_n_layers=1)
    all_global = random_params(ModernBertModel(only))
    without = dataclasses.replace(only, local_rope_theta=500.0)  # no layer is local
    np.testing.assert_array_equal(hidden(without, all_global, ids), hidden(only, all_global, ids))


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


REFUSED = {
    "heads": (lambda: ModernBertConfig.tiny(num_attention_heads=3), "divides by the heads"),
    "an odd head": (lambda: ModernBertConfig.tiny(hidden_size=6, num_attention_heads=2), "rotate in pairs, found 6"),
    "keys": (lambda: ModernBertConfig.tiny(num_key_value_heads=3), "num_key_value_heads that divides the 2 heads"),
    "no keys": (lambda: ModernBertConfig.tiny(num_key_value_heads=0), "divides the 2 heads of queries, found 0"),
    "an odd window": (lambda: ModernBertConfig.tiny(local_attention=7), "even number of tokens from 2"),
    "theta": (lambda: ModernBertConfig.tiny(global_rope_theta=0.0), "global_rope_theta"),
    "norm": (lambda: ModernBertConfig.tiny(norm="batch"), "--model.norm, found 'batch'; known: layer, rms"),
    "a bias of root mean squares": (lambda: ModernBertConfig.tiny(norm="rms", norm_bias=True), "norm_bias False"),
    "pooling": (lambda: ModernBertConfig.tiny(classifier_pooling="late"), "--model.classifier_pooling, found 'late'"),
    "kinds": (
        lambda: interop.read_config(OLD | {"layer_types": ["sliding_attention"] * 4}), "layer_types of 4 layers",
    ),
    "scaled rotations": (
        lambda: interop.read_config(OLD | {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}),
        "rope_type of \"default\"",
    ),
    "an own output layer": (
        lambda: interop.write_config(_masked(tie_word_embeddings=False), ()), "--model.tie_word_embeddings True",
    ),
    "root mean squares": (lambda: interop.write_config(_masked(norm="rms"), ()), "--model.norm layer"),
}  # fmt: skip


def _masked(**changes: object) -> object:
    return dataclasses.replace(MODERNBERT, **changes).module(Purpose.PRETRAINING, Execution())


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_sentence(name: str) -> None:
    refused, said = REFUSED[name]
    with pytest.raises(UserError) as raised:
        refused()
    assert said in str(raised.value)
