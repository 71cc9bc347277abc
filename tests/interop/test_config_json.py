"""The settings and the labels of a config.json, and the default task of its model."""

import contextlib
import dataclasses
import importlib
import itertools
import json
import types
from collections.abc import Callable
from typing import Any

import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import PairedStreams
from plmjax.errors import UserError
from plmjax.finetuning.tasks.sentences import Regression, Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.finetuning.tasks.text_pairs import TextPairs
from plmjax.interop import encoder, labels, reformer
from plmjax.interop.default_tasks import task_of
from plmjax.interop.huggingface import ADAPTERS
from plmjax.interop.problem_types import with_problem_type
from plmjax.models.bert import BertConfig, BertForMaskedLM
from plmjax.models.elmo import ElmoConfig
from plmjax.models.transformer import TransformerConfig, TransformerModel
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from tests.optional import transformers

OWN = {"num_buckets", "attention_window"}
"""Fields of another form: buckets that follow from the longest row, and a window for each layer."""
GIVEN: dict[str, dict[str, Any]] = {
    "deberta-v2": {
        "relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"],
    },
    "longformer": {"max_position_embeddings": 4098},
}  # fmt: skip
"""Settings of released files without which the defaults are refused: of the attention that a DeBERTa has, and rows that
are as long as the default window."""
COUNTS = {
    "albert": (19, 19, 7), "bart": (19, 19, 12), "bert": (16, 16, 7), "deberta-v2": (20, 19, 5),
    "distilbert": (11, 11, 7), "electra": (18, 18, 7), "eurobert": (16, 14, 1), "gpt2": (16, 16, 8), "led": (19, 19, 5),
    "longformer": (16, 16, 7), "marian": (17, 17, 11), "mobilebert": (21, 18, 10), "modernbert": (23, 20, 4),
    "modernbert-decoder": (21, 20, 4), "openai-gpt": (12, 12, 8), "reformer": (28, 24, 4), "roberta": (16, 16, 7),
    "t5": (16, 14, 2), "xlnet": (16, 16, 9),
}  # fmt: skip
"""Numbers of fields of the config that transformers has too; of those that may have more than one value; and of
settings of transformers that change what it computes, and of which there is one value here."""


@pytest.mark.parametrize("name", ADAPTERS)
def test_defaults_are_those_of_transformers(name: str) -> None:
    given = GIVEN.get(name, {})
    theirs, found = transformers.AutoConfig.for_model(name, **given), ADAPTERS[name].read_config(given)
    shared = {field.name for field in dataclasses.fields(found) if hasattr(theirs, field.name)} - OWN
    assert len(shared) == COUNTS[name][0]
    for field in shared:
        value = getattr(theirs, field)
        assert getattr(found, field) == (tuple(value) if isinstance(value, list) else value), field


DERIVED = {
    "num_decoder_layers", "max_global_tokens", "num_buckets", "decoder_vocab_size", "num_key_value_heads",
    "decoder_bias",
}  # fmt: skip
"""Fields whose default follows from another one."""
WORDS = {"hidden_act": "relu", "activation_function": "relu", "activation": "relu", "ff_activation": "relu"}
WORDS |= {"pooler_hidden_act": "relu"}


def other_value(read: Callable[[dict[str, Any]], Any], config: Any, field: str) -> Any:
    """Another value of a field that a config may have; None if there is none."""
    value = getattr(config, field)
    if isinstance(value, str):
        return WORDS.get(field)
    if isinstance(value, bool):
        several = (not value,)
    elif isinstance(value, float):
        several = (value * 0.75 + 0.01,)
    else:
        several = (7, 0.375) if value is None else (value * 2, value * 3, value // 2, value + 1, value - 1)
    for other in several:
        with contextlib.suppress(UserError, ValueError):
            dataclasses.replace(config, **{field: other})
            read({field: other})
            return other
    return None


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_setting_is_read_and_written_under_its_own_name(name: str) -> None:
    """And changes no other one."""
    adapter, given = ADAPTERS[name], GIVEN.get(name, {})
    plain, looked_at = adapter.read_config(given), 0
    module = next(iter(adapter.architectures.values())).module
    theirs = transformers.AutoConfig.for_model(name, **given)
    for field in (field.name for field in dataclasses.fields(plain)):
        if not hasattr(theirs, field) or isinstance(getattr(plain, field), tuple):
            continue  # lists have tests of their own
        other = other_value(lambda changed: adapter.read_config(given | changed), plain, field)
        if other is None:
            continue
        expected = dataclasses.replace(plain, **{field: other})
        found = adapter.read_config(given | {field: other})
        for one in dataclasses.fields(plain):
            if one.name not in DERIVED - {field}:
                assert getattr(found, one.name) == getattr(expected, one.name), (field, one.name)
        written = json.loads(json.dumps(adapter.write_config(module(found), [])))
        assert adapter.read_config(written) == found, field
        if field == "tie_word_embeddings":  # T5's: transformers 5 calls every one tied
            continue
        opened = transformers.AutoConfig.for_model(**{"model_type": name} | written)
        assert getattr(opened, field) == other, field
        looked_at += 1
    assert looked_at == COUNTS[name][1]


PUBLISHED = {
    "bart": {
        "add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False, "normalize_embedding": True,
        "scale_embedding": False, "static_position_embeddings": False,
    },
    "marian": {"add_final_layer_norm": False, "normalize_before": False, "static_position_embeddings": True},
}  # fmt: skip
"""Settings of published files that transformers' class has no more."""
OTHERS = {float: 0.5, str: "other", dict: {"0": [1]}, type(None): {"bits": 8}}
"""Type of a setting's one value -> another value."""


def required(name: str) -> dict[str, Any]:
    """The settings of a system that have one value."""
    module = importlib.import_module(ADAPTERS[name].read_config.__module__)
    return getattr(module, "REQUIRED", encoder.REQUIRED)


@pytest.mark.parametrize("name", ADAPTERS)
def test_settings_of_one_value_have_that_of_transformers_and_no_other(name: str) -> None:
    """Each is looked at: another value is refused, in one sentence that names it."""
    given = GIVEN.get(name, {})
    theirs = transformers.AutoConfig.for_model(name, **given)
    assert len(required(name)) == COUNTS[name][2]
    for setting, value in required(name).items():
        known = PUBLISHED.get(name, {}).get(setting, getattr(theirs, setting, value))
        assert (known or None) == (value or None), setting
        other = OTHERS[type(value)] if type(value) is not bool else not value
        with pytest.raises(UserError, match=f"Expected {setting} = .*, which is all that this"):
            ADAPTERS[name].read_config(given | {setting: other})
        ADAPTERS[name].read_config(given | {setting: value})


def test_buckets_that_a_config_leaves_open_are_those_of_transformers() -> None:
    """For rows as long as the positions, which may be chosen by two factors."""
    for length, chunk in itertools.product((64, 1000, 4096, 65_536), (8, 64)):
        theirs = types.SimpleNamespace(
            chunk_length=chunk, max_position_embeddings=length, config=types.SimpleNamespace()
        )
        transformers.models.reformer.modeling_reformer.LSHSelfAttention._set_num_buckets(theirs, length)
        expected = theirs.num_buckets if isinstance(theirs.num_buckets, list) else [theirs.num_buckets]
        assert reformer.choose_buckets(length, chunk) == tuple(expected)


READ = [
    ("t5", {"num_layers": 3}, {"num_layers": 3, "num_decoder_layers": 3}),
    ("t5", {"num_layers": 3, "num_decoder_layers": 5}, {"num_layers": 3, "num_decoder_layers": 5}),
    ("openai-gpt", {}, {"activation_function": "gelu_new"}),
    ("openai-gpt", {"afn": "relu", "both_orders": True}, {"activation_function": "relu", "both_orders": False}),
    ("gpt2", {"hidden_size": 24, "max_position_embeddings": 11, "num_attention_heads": 3, "num_hidden_layers": 5},
     {"n_embd": 24, "n_positions": 11, "n_head": 3, "n_layer": 5}),
    ("led", {"max_encoder_position_embeddings": 3072, "max_decoder_position_embeddings": 77},
     {"max_position_embeddings": 3072, "max_decoder_position_embeddings": 77}),
    ("led", {"attention_window": [8, 6], "encoder_layers": 2, "max_encoder_position_embeddings": 24},
     {"attention_window": (8, 6), "max_global_tokens": 6}),
    ("marian", {"vocab_size": 60000, "decoder_vocab_size": 60000}, {"vocab_size": 60000, "output_bias": True}),
    ("marian", {"output_bias": False}, {"output_bias": False}),
    ("reformer", {"axial_pos_shape": [8, 32], "lsh_attn_chunk_length": 16, "local_attn_chunk_length": 8},
     {"axial_pos_shape": (8, 32), "num_buckets": (32,)}),
    ("distilbert", {"hidden_size": 100, "dim": 24, "n_heads": 3, "hidden_dim": 50, "dropout": 0.2},
     {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 50, "hidden_dropout_prob": 0.2}),
    ("electra", {"architectures": ["ElectraForMaskedLM"], "hidden_size": 24, "num_attention_heads": 3,
                 "intermediate_size": 50, "num_hidden_layers": 5},
     {"generator_hidden_size": 24, "generator_num_attention_heads": 3, "generator_intermediate_size": 50,
      "hidden_size": 24, "num_hidden_layers": 5}),
    ("reformer", {"num_buckets": [4, 6]}, {"num_buckets": (4, 6)}),
    ("longformer", {**GIVEN["longformer"], "attention_window": [8] * 12, "attention_dilation": [1] * 12},
     {"attention_window": (8,) * 12, "max_global_tokens": 128}),
]  # fmt: skip


def test_settings_with_names_and_defaults_of_transformers() -> None:
    for system, settings, expected in READ:
        found = ADAPTERS[system].read_config(settings)
        assert {name: getattr(found, name) for name in expected} == expected


PRETRAINING = {
    "albert": "AlbertPretraining SentenceOrder 128", "bart": "Denoising FullSentences 512",
    "bert": "BertPretraining SentencePairs 128", "deberta-v2": "DebertaPretraining FullSentences 512",
    "distilbert": "MaskedLanguageModel FullSentences 512", "electra": "ElectraPretraining SingleSegment 128",
    "eurobert": "RobertaPretraining FullSentences 2048", "gpt2": "NextToken Chunks 1024",
    "led": "Denoising FullSentences 1024", "longformer": "RobertaPretraining FullSentences 4096",
    "mobilebert": "BertPretraining SentencePairs 128", "modernbert": "RobertaPretraining FullSentences 1024",
    "modernbert-decoder": "NextToken Chunks 1024", "openai-gpt": "NextToken Chunks 512",
    "reformer": "MaskedLanguageModel FullSentences 4096", "roberta": "RobertaPretraining FullSentences 510",
    "t5": "SpanCorruption Chunks 568", "xlnet": "PermutationLanguageModel ContinuedPairs 512",
    "elmo": "BidirectionalLanguageModel BidirectionalStreams 20", "ulmfit": "AwdLstmPretraining Windows 92",
}  # fmt: skip
"""System -> the objective, the layout, and the tokens of a row, by the papers and their code."""
SETTINGS = {"eurobert": {"rate": 0.5, "mask_fraction": 1.0}, "modernbert": {"rate": 0.3}, "t5": {"z_loss": 1e-4}}


def test_a_module_goes_on_with_its_pretraining() -> None:
    configs = {name: adapter.read_config(GIVEN.get(name, {})) for name, adapter in ADAPTERS.items() if name != "marian"}
    for name, config in (configs | {"elmo": ElmoConfig(), "ulmfit": UlmfitConfig()}).items():
        objective, data = task_of(config.module(Purpose.PRETRAINING, Execution()))
        assert f"{type(objective).__name__} {type(data.layout).__name__} {data.sequence_length}" == PRETRAINING[name]
        assert all(getattr(objective, field) == value for field, value in SETTINGS.get(name, {}).items())
    decoder = dataclasses.replace(configs["reformer"], is_decoder=True).module(Purpose.PRETRAINING, Execution())
    assert type(task_of(decoder)[0]).__name__ == "NextToken"
    # A masked language model alone has no labels of pairs.
    assert task_of(BertForMaskedLM(BertConfig()))[0] == MaskedLanguageModel()


def test_a_translation_model_begins_with_its_own_token_and_its_texts_fit_the_decoder() -> None:
    """The token that begins a text takes a position."""
    for first, start in ((1, "end"), (0, "pad")):
        ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": first}
        objective, data = task_of(TransformerModel(TransformerConfig.tiny(**ids, max_position_embeddings=40)))
        assert objective == SequenceToSequence(label_smoothing=0.1)
        assert data.layout == PairedStreams(start=start) and data.sequence_length == 40
    for positions, target in ((24, 24), (512, 128)):
        config = TransformerConfig.tiny(max_position_embeddings=positions)
        objective, data = task_of(config.module(Purpose.SEQ2SEQ, Execution()))
        assert isinstance(objective, Translation) and objective.max_new_tokens == target - 1
        assert isinstance(data, TextPairs) and data.target_length == target


def test_heads_are_tuned_with_the_names_of_their_labels() -> None:
    config = BertConfig()

    def tuned(purpose: Purpose, count: int, *labels: str) -> tuple[Any, Any]:
        return task_of(config.module(purpose, Execution(), count), labels)

    assert tuned(Purpose.SEQUENCE_CLASSIFICATION, 1) == (Regression(), Sentences())
    assert tuned(Purpose.SEQUENCE_CLASSIFICATION, 2, "no", "yes") == (
        SequenceClassification(labels=("no", "yes")),
        Sentences(),
    )
    assert tuned(Purpose.SEQUENCE_CLASSIFICATION, 2)[0].labels == ("LABEL_0", "LABEL_1")
    words = TokenTagging(labels=("DET", "NOUN"), entities=False)
    assert tuned(Purpose.TOKEN_CLASSIFICATION, 2, "DET", "NOUN") == (words, Tagging(scheme=""))
    entities = TokenTagging(labels=("O", "B-X", "I-X"), entities=True)
    assert tuned(Purpose.TOKEN_CLASSIFICATION, 3, "O", "B-X", "I-X") == (entities, Tagging(scheme="IOB2"))


def test_a_kind_of_problem_fits_the_labels() -> None:
    for kind, said in (
        ("regression", "found the problem_type 'regression' with 3"),
        ("multi_label", "'multi_label'; known"),
    ):
        with pytest.raises(UserError, match=said):
            with_problem_type(SequenceClassification(), Sentences(), ("a", "b", "c"), kind)


def test_labels_are_those_of_transformers() -> None:
    many = {str(number): f"kind {number % 7} {number}" for number in (10, *range(10), 11)}
    for found in (
        {},
        {"num_labels": 1},
        {"id2label": {"0": "no", "1": "yes", "2": "so"}, "num_labels": 3},
        {"id2label": many},
    ):
        theirs = transformers.BertConfig.from_dict(found)
        assert labels.count(found) == theirs.num_labels
        assert labels.names(found) == tuple(theirs.id2label[number] for number in range(theirs.num_labels))
    for number in (0, 10**6 + 1, True):
        with pytest.raises(UserError, match="a number of labels as num_labels of the config"):
            labels.count({"num_labels": number})
