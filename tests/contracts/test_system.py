"""The declarations of all systems: what each has is made from its config, and what it lacks is one sentence."""

import dataclasses
import importlib
import pkgutil

import flax.linen as nn
import pytest

from plmjax import models
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
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

FILES = [importlib.import_module(found.name) for found in pkgutil.walk_packages(models.__path__, "plmjax.models.")]
DECLARED = [(file, system) for file in FILES for system in getattr(file, "SYSTEMS", (getattr(file, "SYSTEM", None),))]
SYSTEMS = {system.config.__name__: system for _, system in DECLARED if system is not None}
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


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: GloveConfig.tiny().template, "reads texts"),
        (lambda: GloveConfig.tiny().with_dropout(0.1), "has one dropout rate for all its layers"),
        (lambda: BertConfig.tiny().with_tokens(7, 0), "has room for further tokens"),
        (lambda: BertConfig.tiny().empty_cache(1, 2, Execution()), "keeps a cache of the tokens it has read"),
    ],
)
def test_numbers_that_a_system_does_not_have_are_the_same_sentence(ask, words: str) -> None:
    with pytest.raises(UserError, match=f"^Expected a model that {words}, found (Glove|Bert)Config, "):
        ask()


DROPOUTS = {
    "hidden_dropout_prob attention_probs_dropout_prob": "Bert Roberta Albert Electra Deberta DistilBert MobileBert "
    "Longformer",
    "embd_pdrop resid_pdrop attn_pdrop": "Gpt Gpt2",
    "dropout attention_dropout": "Bart BartTranslation Led Transformer",
    "dropout attention_dropout convolution_dropout": "LiteTransformer",
    "dropout attention_dropout convolution_dropout activation_dropout": "LiteTransformerDecoder",
    "dropout dropatt": "TransformerXl",
    "dropout unlabelled_dropout": "Cvt",
    "dropout_rate": "T5",
    "dropout": "AdaptiveSpan Xlnet LongformerDecoder Cove Biattentive Tagger Taglm ElmoTagger",
    "embedding_dropout input_dropout weight_dropout hidden_dropout output_dropout": "AwdLstm Ulmfit",
    "hidden_dropout_prob local_attention_probs_dropout_prob lsh_attention_probs_dropout_prob": "Reformer",
    "": "StaticVectors Elmo Glove Nnlm Word2Vec",
}
"""The fields that have a model's one dropout rate, and the systems that have them."""


def changed(before: ModelConfig, after: ModelConfig) -> dict[str, object]:
    fields = [field.name for field in dataclasses.fields(before)]
    return {name: getattr(after, name) for name in fields if getattr(after, name) != getattr(before, name)}


def test_a_dropout_rate_is_that_of_all_layers_and_of_no_head() -> None:
    fields = {f"{system}Config": names.split() for names, systems in DROPOUTS.items() for system in systems.split()}
    modern = "embedding_dropout attention_dropout attention_output_dropout mlp_dropout".split()
    fields |= {f"{name}BertConfig": modern for name in ("Modern", "Euro", "Neo")}
    fields["ModernBertDecoderConfig"] = modern
    fields |= {name: fields[name.removeprefix("Compressed")] for name in SYSTEMS if name.startswith("Compressed")}
    assert fields.keys() == SYSTEMS.keys()
    for name, system in SYSTEMS.items():
        config = system.config()
        if not fields[name]:
            with pytest.raises(UserError, match="has one dropout rate"):
                config.with_dropout(0.37)
            continue
        assert changed(config, config.with_dropout(0.37)) == dict.fromkeys(fields[name], 0.37), name


def test_another_depth_is_that_of_both_sides() -> None:
    pairs = {"Bart": "encoder_layers decoder_layers", "T5": "num_layers num_decoder_layers", "Gpt": "n_layer"}
    pairs |= {"Led": pairs["Bart"], "Transformer": pairs["Bart"], "Xlnet": "n_layer", "Bert": "num_hidden_layers"}
    for name, fields in pairs.items():
        config = SYSTEMS[f"{name}Config"].config()
        assert changed(config, config.with_depth(5)) == dict.fromkeys(fields.split(), 5), name


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_a_system_keeps_a_cache_where_it_writes_text(system: System) -> None:
    assert (system.cache is not None) == (Purpose.CAUSAL_LM in system)
    reads_from_the_end = UlmfitConfig(backwards=True).system
    assert reads_from_the_end.cache is None and Purpose.CAUSAL_LM not in reads_from_the_end


@pytest.mark.parametrize("purpose", ENCODERS)
@pytest.mark.parametrize("system", ["BertConfig", "AlbertConfig", "RobertaConfig", "ElectraConfig"])
def test_an_encoder_has_a_pooler_only_if_asked_for(system: str, purpose: Purpose) -> None:
    """Their classes may have one by default, as in transformers; a head for tokens has no use for it."""
    config = SYSTEMS[system].config()
    assert not config.module(purpose, Execution()).pooling
    assert config.module(purpose, Execution(), pooling=True).pooling


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
