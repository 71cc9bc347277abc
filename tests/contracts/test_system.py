"""The declarations of all systems: what each has is made from its config, and what it lacks is one sentence."""

import dataclasses

import flax.linen as nn
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, group_of, system_of
from plmjax.contracts.template import Template
from plmjax.errors import UserError
from plmjax.models.bert import BertConfig, BertForNextSentencePrediction, BertModel
from plmjax.models.cove.biattentive_classification import BiattentiveConfig
from plmjax.models.cove.cove import CoveConfig
from plmjax.models.glove import GloveConfig
from plmjax.models.gpt import GptConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.t5 import T5Config
from plmjax.models.ulmfit import UlmfitConfig
from tests.models.declared import DECLARED, FILES, SYSTEMS

BASES = {
    "BranchesConfig", "EncoderConfig", "DecoderConfig", "EncoderDecoderConfig", "LanguageModelTaggerConfig",
    "LowRankConfig", "LowRankEncoder", "LowRankDecoder", "PrunedEncoder",
}  # fmt: skip
"""Configs that several systems are derived from, and that are of none."""
MORE = {Purpose.SEQUENCE_CLASSIFICATION: (3,), Purpose.TOKEN_CLASSIFICATION: (3, False), Purpose.MULTI_VIEW: ((),)}
"""Purpose -> arguments of its module besides config and execution."""
ENCODERS = (Purpose.ENCODING, Purpose.EMBEDDING)


def test_every_config_of_a_model_file_has_a_declaration_in_that_file() -> None:
    configs = {
        each.__name__: file
        for file in FILES
        for each in vars(file).values()
        if isinstance(each, type) and issubclass(each, ModelConfig) and each.__module__ == file.__name__
    }
    assert configs.keys() - BASES == SYSTEMS.keys()
    for file, system in DECLARED:
        assert system is None or configs[system.config.__name__] is file


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_every_purpose_makes_a_module_of_the_config(system: System) -> None:
    config = system.config()
    assert config.system.config is system.config and set(system.reads) <= {"input_ids", "characters"}
    assert system.template is None or isinstance(config.template, Template)
    for purpose in system.modules:
        module = config.module(purpose, Execution(), *MORE.get(purpose, ()))
        assert isinstance(module, nn.Module) and module.config in (config, getattr(config, "vectors", None))
        assert module.name == (config.system.name if purpose in ENCODERS else None)


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_an_absent_purpose_is_one_sentence_that_names_those_that_are_there(system: System) -> None:
    config = system.config()
    for purpose in set(Purpose) - system.modules.keys():
        with pytest.raises(UserError) as raised:
            config.module(purpose, Execution(), *MORE.get(purpose, ()))
        said = str(raised.value)
        assert said.startswith(f"Expected a model that {purpose.words}, found {system.config.__name__}, {system.kind}")
        assert said.endswith(f"; {system.instead or purpose.advice}.") and said.count(". ") == 0


def test_the_sentence_reads_well() -> None:
    with pytest.raises(UserError) as raised:
        GloveConfig.tiny().system.require(Purpose.SEQUENCE_CLASSIFICATION, " in runs/glove")
    assert str(raised.value) == (
        "Expected a model that labels texts in runs/glove, found GloveConfig, word vectors; put a layer above its "
        "vectors with experiments/static_vectors.py."
    )
    with pytest.raises(UserError, match="texts, found T5Config, an encoder-decoder; fine-tune"):
        T5Config.tiny().module(Purpose.SEQUENCE_CLASSIFICATION, Execution(), 2)


def test_numbers_that_a_system_does_not_have_are_the_same_sentence() -> None:
    for ask, words in (
        (lambda: GloveConfig.tiny().template, "reads texts, found Glove"),
        (lambda: GloveConfig.tiny().with_dropout(0.1), "has one dropout rate for all its layers, found Glove"),
        (lambda: BertConfig.tiny().with_tokens(7, 0), "has room for further tokens, found Bert"),
        (lambda: BertConfig.tiny().empty_cache(1, 2, Execution()), "keeps a cache of the tokens .*, found Bert"),
    ):
        with pytest.raises(UserError, match=f"^Expected a model that {words}Config, "):
            ask()


def changed(before: ModelConfig, after: ModelConfig) -> dict[str, object]:
    fields = [field.name for field in dataclasses.fields(before)]
    return {name: getattr(after, name) for name in fields if getattr(after, name) != getattr(before, name)}


def test_another_depth_is_that_of_both_sides() -> None:
    pairs = {"Bart": "encoder_layers decoder_layers", "T5": "num_layers num_decoder_layers", "Gpt": "n_layer"}
    pairs |= {"Led": pairs["Bart"], "Transformer": pairs["Bart"], "Xlnet": "n_layer", "Bert": "num_hidden_layers"}
    for name, fields in pairs.items():
        config = SYSTEMS[f"{name}Config"].config()
        assert changed(config, config.with_depth(5)) == dict.fromkeys(fields.split(), 5), name


def test_a_system_keeps_a_cache_where_it_writes_text() -> None:
    for name, system in SYSTEMS.items():
        assert (system.cache is not None) == (Purpose.CAUSAL_LM in system), name
    reads_from_the_end = UlmfitConfig(backwards=True).system
    assert reads_from_the_end.cache is None and Purpose.CAUSAL_LM not in reads_from_the_end


@pytest.mark.parametrize("system", ["BertConfig", "AlbertConfig", "RobertaConfig", "ElectraConfig"])
def test_an_encoder_has_a_pooler_only_if_asked_for(system: str) -> None:
    """Their classes may have one by default, as in transformers; a head for tokens has no use for it."""
    make = SYSTEMS[system].config().module
    assert not any(make(purpose, Execution()).pooling for purpose in ENCODERS)
    assert all(make(purpose, Execution(), pooling=True).pooling for purpose in ENCODERS)


def test_a_module_has_the_purposes_that_it_is_made_for() -> None:
    config = BertConfig.tiny()
    assert config.system.purposes(BertModel(config)) == list(ENCODERS)
    assert config.system.purposes(BertForNextSentencePrediction(config)) == []  # one of the two pretraining heads


def test_vectors_of_tokens_are_rows_of_a_table_or_what_the_system_says() -> None:
    params = {"words/embedding": 1.0, "contexts/embedding": 2.0, "gpt2/word_embeddings/embedding": 3.0}
    assert GloveConfig.tiny().system.vectors(params) == 3.0
    assert Gpt2Config.tiny().system.vectors(params) == 3.0
    assert BertConfig.tiny().system.vectors is None


def test_a_config_may_choose_between_declarations() -> None:
    assert Purpose.CAUSAL_LM in UlmfitConfig().system and not UlmfitConfig().system.backwards
    backwards = UlmfitConfig(backwards=True)
    assert Purpose.CAUSAL_LM not in backwards.system and backwards.template.backwards
    assert GptConfig(both_orders=True).template.both_orders and not GptConfig().template.both_orders
    network = BiattentiveConfig(vectors=CoveConfig())
    assert (network.system.name, network.system.token_table) == ("cove", "cove/words/embedding")


def test_a_derived_config_is_of_the_same_system_and_another_one_needs_its_own() -> None:
    @dataclasses.dataclass(frozen=True)
    class Larger(BertConfig):
        """More layers."""

    class Undeclared(ModelConfig):
        """A config without a system."""

    assert Larger().system is system_of(BertConfig) and Larger().system.kind is Kind.ENCODER
    with pytest.raises(TypeError, match=r"a declared system for Undeclared, found none; end its file with declare"):
        Undeclared().system  # noqa: B018


def test_a_parameter_is_of_the_group_with_its_longest_prefix_of_whole_names() -> None:
    groups = (
        ParameterGroup(("bert", "head/last")),
        ParameterGroup(("bert/layers",), 1),
        ParameterGroup(("bert/lay",), 2),
    )
    paths = "bert/layers/kernel", "bert/layers_norm/scale", "bert/lay/scale", "head/last", "bertha/kernel", "head/b"
    expected = [("bert/layers", 1), ("bert", None), ("bert/lay", 2), ("head/last", None), None, None]
    assert [group_of(path, groups) for path in paths] == expected


@dataclasses.dataclass(frozen=True)
class Config:
    """Two numbers."""

    width: int = 1
    depth: int = 2

    wide = Size("Wider.", width=10)


def test_a_size_makes_the_config_and_arguments_override_it() -> None:
    assert Config.wide() == Config(10, 2) and Config.wide(width=3, depth=4) == Config(3, 4)
    assert Config(5, 5).wide() == Config(10, 2)
    assert [field.name for field in dataclasses.fields(Config)] == ["width", "depth"]
    assert type(BertConfig.base()) is BertConfig and "110,106,428 parameters" in BertConfig.base.__doc__
