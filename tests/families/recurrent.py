"""The rows of AWD-LSTM, CoVe and ELMo."""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.layers.words.characters import spell
from plmjax.models import awd_lstm, elmo
from plmjax.models.cove import cove
from plmjax.models.ulmfit import UlmfitConfig
from tests.families import torch_layers
from tests.families.family import (
    READS_AND_WRITES,
    READS_FORWARD,
    Batch,
    Count,
    Family,
    Head,
    View,
    both_sides,
    earlier_in_sequence,
    later_in_sequence,
    untyped_tokens,
)
from tests.families.oracles import TorchOracle
from tests.optional import torch
from tests.third_party import experiments

# ----------------------------------------------------------------------------------------------------- AWD-LSTM

AWD_LSTM = awd_lstm.AwdLstmConfig(vocab_size=23, embedding_size=6, hidden_size=10, num_layers=2).with_dropout(0.0)
AWD_LSTM_TRAINED = dataclasses.replace(AWD_LSTM.with_dropout(0.2), vocab_size=24, hidden_size=8)


def awd_lstm_layers(config: awd_lstm.AwdLstmConfig, params: Mapping[str, Any], ids: Any, place: str = "") -> tuple:
    """The embeddings [T E] and the outputs of torch's layers."""
    found = [params[f"{place}word_embeddings/embedding"][ids]]
    for number in range(config.num_layers):
        found.append(torch_layers.lstm(params, f"{place}layer_{number}", found[-1])[0])
    return tuple(found)


def awd_lstm_formula(config: awd_lstm.AwdLstmConfig, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """The layers without dropout."""
    found = awd_lstm_layers(config, params, text["input_ids"])
    return {"last_hidden_state": found[-1], "raw_hidden_state": found[-1], "hidden_states": found}


def awd_lstm_scores(config: awd_lstm.AwdLstmConfig, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """Scores of the next token from the table of the embeddings."""
    *_, last = awd_lstm_layers(config, params, text["input_ids"], "awd_lstm/")
    logits = last @ params["awd_lstm/word_embeddings/embedding"].T + params["output_bias"]
    return {"last_hidden_state": last, "logits": logits}


AWD_LSTM_ROW = Family(
    oracle=TorchOracle({awd_lstm.AwdLstmForCausalLM: awd_lstm_scores, awd_lstm.AwdLstmModel: awd_lstm_formula}),
    heads=(Head(awd_lstm.AwdLstmForCausalLM(AWD_LSTM), packs=False),),
    bodies=(awd_lstm.AwdLstmModel(AWD_LSTM),),
    switches=({"num_layers": 1},),
    trained=Head(awd_lstm.AwdLstmForCausalLM(AWD_LSTM_TRAINED)),
    loops=False,
    sharded=("awd_lstm/layer_0/input/kernel", (3, 4, 4)),
    counts={
        name: (config, (Count(awd_lstm.AwdLstmForCausalLM, parameters),))
        for name, config, parameters in (
            ("penn_treebank", awd_lstm.AwdLstmConfig.penn_treebank(), 24_221_600),
            ("wikitext2", awd_lstm.AwdLstmConfig.wikitext2(), 33_556_078),
            ("wikitext103", awd_lstm.AwdLstmConfig.wikitext103(), 127_573_335),
            ("ULMFiT", UlmfitConfig.base(), 44_333_280),
        )
    },
    initial=awd_lstm.AwdLstmForCausalLM(
        awd_lstm.AwdLstmConfig(vocab_size=500, embedding_size=40, hidden_size=64, num_layers=2)
    ),
    drawn="^awd_lstm/",
    deviations={"words|embeddings": 0.1 / 3**0.5, "layer_0": 64**-0.5 / 3**0.5, "layer_1": 40**-0.5 / 3**0.5},
    uniform="",
    words="word_embeddings/embedding",
    step=experiments.awd_lstm,
    learning={"model": {"embedding_size": 32, "hidden_size": 32}},
    batches={"tokens": untyped_tokens},
    views=READS_FORWARD,
)

# --------------------------------------------------------------------------------------------------------- CoVe

COVE = cove.CoveConfig(vocab_size=19, vector_size=6, hidden_size=5, dropout=0.0)
COVE_TRAINED = cove.CoveConfig(vocab_size=20, vector_size=6, hidden_size=4, num_layers=1, dropout=0.2)


def cove_layers(config: cove.CoveConfig, params: Mapping[str, Any], ids: Any, place: str = "") -> tuple[tuple, list]:
    """The words' vectors and the outputs of all layers, and the last states of both directions of each."""
    found, states = [params[f"{place}words/embedding"][ids]], []
    for layer in range(config.num_layers):
        output, *last = torch_layers.both_ways(params, f"{place}layer_{layer}", found[-1])
        found.append(output)
        states.append(tuple(last))
    return tuple(found), states


def mt_lstm(config: cove.CoveConfig, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """Section 3.1."""
    found, _ = cove_layers(config, params, text["input_ids"])
    return {"last_hidden_state": found[-1], "hidden_states": found}


def cove_translation(config: cove.CoveConfig, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """Sections 3.1 and 3.2, word by word of the target."""
    (*_, encoded), states = cove_layers(config, params, text["input_ids"], "cove/")
    spoken, found, logits = encoded.new_zeros(config.width), [], []
    for word in params["decoder/words/embedding"][text["decoder_input_ids"]]:
        x = torch.cat([word, spoken])
        for layer in range(config.num_layers):
            output, *states[layer] = torch_layers.lstm(
                params, f"decoder/step/layer_{layer}", x[None], state=states[layer]
            )
            x = output[0]
        place = "decoder/step/attention"
        asked = x @ params[f"{place}/query/kernel"] if config.attention == "general" else x
        context = torch.softmax(encoded @ asked, dim=0) @ encoded
        spoken = torch.tanh(torch.cat([context, x]) @ params[f"{place}/output/kernel"])
        found.append(spoken)
        logits.append(params["generator"] @ spoken + params["generator_bias"])
    named = {"last_hidden_state": torch.stack(found), "logits": torch.stack(logits)}
    return named | {"encoder_last_hidden_state": encoded}


def sides_without_a_padding_token(config: Any) -> Batch:
    """Sources and targets for a model that has no padding token; the id 0 does not occur."""
    return both_sides(types.SimpleNamespace(vocab_size=config.vocab_size, pad_token_id=0))


COVE_ROW = Family(
    oracle=TorchOracle({cove.MtLstm: mt_lstm, cove.CoveForTranslation: cove_translation}, deviation=0.45),
    heads=(Head(cove.CoveForTranslation(COVE), packs=False), Head(cove.MtLstm(COVE), outputs=("last_hidden_state",))),
    bodies=(cove.CoveForTranslation(COVE),),
    switches=({"attention": "dot", "num_layers": 1},),
    trained=Head(cove.CoveForTranslation(COVE_TRAINED)),
    loops=False,
    sharded=("cove/layer_0/forward/input/kernel", (3, 4, 2)),
    counts={
        "original": (
            cove.CoveConfig.original(),
            (
                Count(cove.CoveForTranslation, 3_609_600, "^cove/layer_"),
                Count(cove.CoveForTranslation, 7_569_600, "^decoder/step/"),
            ),
        )
    },
    initial=cove.CoveForTranslation(cove.CoveConfig.tiny(vocab_size=300, num_layers=1)),
    drawn="^(?!cove/words)",
    deviations={"": 0.1 / 3**0.5},
    uniform="",
    words={"": "cove/words/embedding", "decoder_": "decoder/words/embedding"},
    step=experiments.cove,
    learning={"model": {"vector_size": 24, "initializer_range": 0.4}, "optimizer": {"learning_rate": 1e-2}},
    batches={"both sides": sides_without_a_padding_token},
    views=READS_AND_WRITES,
)

# --------------------------------------------------------------------------------------------------------- ELMo

WORDS = ["the", "extraordinary", "é", "a", "cats", "b"]
ELMO = elmo.ElmoConfig(
    vocab_size=29,
    max_characters_per_token=9,
    character_dim=3,
    filter_widths=(1, 3, 2),
    filter_counts=(4, 2, 5),
    n_layers=3,
    dim=7,
    projection_dim=6,
    cell_clip=0.3,
    proj_clip=0.15,
    dropout=0.0,
)
WITHOUT_HIGHWAYS = {"use_skip_connections": False, "n_highway": 0, "n_layers": 2}
ELMO_TRAINED = dataclasses.replace(ELMO, dim=8, filter_counts=(4, 2, 6), n_layers=2, dropout=0.2)


def spelled_tokens(config: Any) -> Batch:
    """Rows of 17, 11 and 1 words, as numbers and by their spelling, with one that is cut and one of one letter."""
    batch, random = untyped_tokens(config), np.random.default_rng(1)
    words = np.asarray(spell(WORDS, config.max_characters_per_token), np.int32)
    chosen = random.integers(0, len(words), batch["input_ids"].shape)
    return batch | {"characters": words[chosen] * batch["attention_mask"][..., None]}


def released_tensors(config: elmo.ElmoConfig, params: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """The parameters as torch tensors by the names and in the layouts of the released files."""
    own = {name.removeprefix(place): tensor for name, tensor in params.items() if name.startswith(place)}
    found = {"char_embed": own["words/characters"]}
    for part, name in (("kernel", "W_proj"), ("bias", "b_proj")):
        found[f"CNN_proj/{name}"] = own[f"words/projection/{part}"]
    for number in range(len(config.filter_widths)):
        found[f"CNN/W_cnn_{number}"] = own[f"words/filters_{number}"][None]
        found[f"CNN/b_cnn_{number}"] = own[f"words/filter_bias_{number}"]
    for number in range(config.n_highway):
        for ours, theirs in (("gate", "carry"), ("transform", "transform")):
            for part, letter in (("kernel", "W"), ("bias", "b")):
                found[f"CNN_high_{number}/{letter}_{theirs}"] = own[f"words/highway_{number}/{ours}/{part}"]
    order = [0, 2, 1, 3]  # input, candidate, forget, output
    for number, way in enumerate(elmo.DIRECTIONS):
        for layer in range(config.n_layers):
            ours, theirs = f"{way}/layer_{layer}", f"RNN_{number}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            kernels = torch.cat([own[f"{ours}/input/kernel"], own[f"{ours}/recurrent_kernel"]])
            found[f"{theirs}/W_0"] = kernels[:, order].flatten(1)
            found[f"{theirs}/B"] = own[f"{ours}/input/bias"][order].flatten()
            found[f"{theirs}/W_P_0"] = own[f"{ours}/projection_kernel"]
    return found


def elmo_layers(config: elmo.ElmoConfig, tensors: Mapping[str, Any], characters: Any) -> list[tuple[Any, Any]]:
    """Both directions of all layers, [T P] each, of one sentence [T C] by the released tensors."""
    table = torch.cat([tensors["char_embed"].new_zeros(1, config.character_dim), tensors["char_embed"]])
    spelling = table[characters].mT  # [T E C]
    found = []
    for number in range(len(config.filter_widths)):
        kernel = tensors[f"CNN/W_cnn_{number}"][0].permute(2, 1, 0)
        found.append(torch.nn.functional.conv1d(spelling, kernel, tensors[f"CNN/b_cnn_{number}"]).relu().amax(-1))
    words = torch.cat(found, dim=-1)
    for number in range(config.n_highway):
        w = {
            name: tensors[f"CNN_high_{number}/{name}"] for name in ("W_carry", "b_carry", "W_transform", "b_transform")
        }
        gate = (words @ w["W_carry"] + w["b_carry"]).sigmoid()
        words = gate * (words @ w["W_transform"] + w["b_transform"]).relu() + (1 - gate) * words
    words = words @ tensors["CNN_proj/W_proj"] + tensors["CNN_proj/b_proj"]
    layers: list[list] = [[words, words]] + [[] for _ in range(config.n_layers)]
    for number in range(2):
        x = words.flip(0) if number else words
        for layer in range(config.n_layers):
            cell = f"RNN_{number}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            c, h, outputs = words.new_zeros(config.dim), words.new_zeros(config.projection_dim), []
            for token in x:
                i, j, f, o = (torch.cat([token, h]) @ tensors[f"{cell}/W_0"] + tensors[f"{cell}/B"]).chunk(4)
                c = ((f + 1).sigmoid() * c + i.sigmoid() * j.tanh()).clamp(-config.cell_clip, config.cell_clip)
                h = ((o.sigmoid() * c.tanh()) @ tensors[f"{cell}/W_P_0"]).clamp(-config.proj_clip, config.proj_clip)
                outputs.append(h)
            y = torch.stack(outputs)
            x = x + y if config.use_skip_connections and layer else y
            layers[layer + 1].append(x.flip(0) if number else x)
    return [tuple(both) for both in layers]


def elmo_formula(config: elmo.ElmoConfig, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """All layers."""
    layers = elmo_layers(config, released_tensors(config, params), text["characters"])
    hidden = tuple(torch.cat(both, dim=-1) for both in layers)
    return {"last_hidden_state": hidden[-1], "hidden_states": hidden}


def elmo_halves(config: elmo.ElmoConfig, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """The last layer's directions."""
    *_, (forward, backward) = elmo_layers(config, released_tensors(config, params), text["characters"])
    return {"forward_state": forward, "backward_state": backward}


@flax.struct.dataclass
class Halves:
    """Both directions of the last layer, [B T P]."""

    forward_state: jax.Array
    backward_state: jax.Array


class ElmoHalves(elmo.ElmoModel):
    """The model with each direction by itself."""

    def __call__(
        self, characters: jax.Array, attention_mask: jax.Array | None = None, segment_ids: jax.Array | None = None
    ) -> Halves:
        """As `ElmoModel`."""
        outputs = super().__call__(characters, attention_mask=attention_mask, segment_ids=segment_ids)
        return Halves(*jnp.split(outputs.last_hidden_state, 2, axis=-1))


class BothDirections(elmo.ElmoForPreTraining):
    """The language models, whose directions read the same words."""

    def __call__(self, characters: jax.Array) -> elmo.ElmoScores:
        """As `ElmoForPreTraining`."""
        flags = dict.fromkeys(elmo.DIRECTIONS, jnp.zeros(characters.shape[:2], bool))
        words = dict.fromkeys(elmo.DIRECTIONS, characters)
        return super().__call__(words, flags, flags, self.config.zero_states(len(characters)))


ELMO_INITIAL = elmo.ElmoConfig.tiny(vocab_size=100, dim=128, projection_dim=128, filter_counts=(16, 16, 32, 64))
ELMO_ROW = Family(
    oracle=TorchOracle({elmo.ElmoModel: elmo_formula, ElmoHalves: elmo_halves}, deviation=0.5),
    heads=(Head(elmo.ElmoModel(ELMO), outputs=("last_hidden_state",)),),
    bodies=(ElmoHalves(ELMO),),
    switches=(WITHOUT_HIGHWAYS,),
    trained=Head(elmo.ElmoModel(ELMO_TRAINED), outputs=("last_hidden_state",)),
    loops=False,
    sharded=("forward/layer_0/input/kernel", (3, 4, 4)),
    counts={
        "original": (
            elmo.ElmoConfig.original(),
            (
                Count(BothDirections, 18_037_840, "^elmo/words"),
                Count(BothDirections, 93_600_848, "^elmo/"),
                Count(BothDirections, 407_050_623, "^softmax"),
                Count(BothDirections, 500_651_471),
            ),
        )
    },
    initial=BothDirections(ELMO_INITIAL),
    drawn=r"(kernel|characters|filters_\d)$",
    constants={"gate/bias": -2.0},
    truncated=False,
    deviations={
        "characters": 1 / 3**0.5,
        "filters": 0.05 / 3**0.5,
        "words/|softmax": 128**-0.5,
        "projection_kernel": math.sqrt(2 / (128 + 128)),
        "": math.sqrt(2 / (2 * 128 + 4 * 128)),
    },
    uniform="characters|filters|layer_",
    words="words/characters",
    step=experiments.elmo,
    learning={"model": {"dim": 32, "projection_dim": 16}},
    batches={"spelled": spelled_tokens},
    views=(View(earlier_in_sequence, "forward_state"), View(later_in_sequence, "backward_state")),
)
