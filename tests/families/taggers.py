"""The rows of TagLM, with the taggers that are like it, and of CVT."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.layers.words.characters import CHARACTERS, PADDING
from plmjax.models import taglm
from plmjax.models.cvt import cvt
from plmjax.models.elmo import ElmoConfig
from plmjax.models.taggers import elmo_tagger, tagger
from tests.families import torch_layers
from tests.families.family import (
    READS_BOTH_WAYS,
    Count,
    Family,
    Head,
    View,
    earlier_in_sequence,
    later_in_sequence,
    same_sequence,
)
from tests.families.oracles import TorchOracle
from tests.families.recurrent import elmo_layers, released_tensors, spelled_tokens
from tests.optional import torch
from tests.third_party import experiments
from tests.third_party.source import CrossViewSource, TaggedSource

# -------------------------------------------------------------------------------------------------------- TagLM

LANGUAGE_MODEL = ElmoConfig(
    vocab_size=11,
    max_characters_per_token=9,
    character_dim=3,
    filter_widths=(2,),
    filter_counts=(4,),
    n_highway=0,
    n_layers=1,
    dim=5,
    projection_dim=3,
    dropout=0.0,
)
TAGGER_SIZES = {
    "vocab_size": 23,
    "word_dim": 4,
    "max_characters_per_token": 9,
    "character_dim": 3,
    "character_features": 6,
    "filter_width": 3,
    "hidden_size": 5,
    "dropout": 0.0,
}
TAGGER = tagger.TaggerConfig(**TAGGER_SIZES)
GRUS = {"cell": "gru", "filter_width": 0}
TAGLM = taglm.TaglmConfig(**TAGGER_SIZES, language_model=LANGUAGE_MODEL)
ELMO_TAGGER = elmo_tagger.ElmoTaggerConfig(**TAGGER_SIZES, language_model=LANGUAGE_MODEL, elmo_dropout=0.0)
TAGLM_TRAINED = dataclasses.replace(TAGLM, vocab_size=24, hidden_size=6, dropout=0.2)


def spelling(config: tagger.TaggerConfig, params: Mapping[str, Any], characters: Any) -> Any:
    """c_k of every word, [T C] -> [T F]; of GRUs the last states of both directions, without padding."""
    table = params["words/characters/embedding"]
    if config.filter_width:
        kernel = params["words/filters"].permute(2, 1, 0)
        return torch.conv1d(table[characters].mT, kernel, params["words/filter_bias"]).amax(dim=2).tanh()
    found, (words, places) = [], torch.unique(characters, dim=0, return_inverse=True)
    for word in words:
        x = table[word[word != PADDING + 1]]
        x, _ = torch_layers.both_ways(params, "words/character_layer_1", x, torch_layers.gru)
        found.append(torch_layers.both_ways(params, "words/character_layer_2", x, torch_layers.gru)[1])
    return torch.stack(found)[places]


def tagger_formula(config: tagger.TaggerConfig, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """Section 2.2 of the paper about TagLM; with language models section 2.4, or equation 1 of that about ELMo."""
    words = params["words/vectors/embedding"][text["input_ids"]]
    x = torch.cat([spelling(config, params, text["characters"]), words], dim=1)
    layer = torch_layers.lstm if config.cell == "lstm" else torch_layers.gru
    layers = []
    if isinstance(config, tagger.LanguageModelTaggerConfig):
        tensors = released_tensors(config.language_model, params, "language_model/")
        layers = [torch.cat(both, dim=1) for both in elmo_layers(config.language_model, tensors, text["characters"])]

    def mix(name: str) -> Any:
        weights = torch.softmax(params[f"scalar_mix_{name}/weights"], dim=0)
        return params[f"scalar_mix_{name}/scale"] * sum(a * h for a, h in zip(weights, layers, strict=True))

    mixes = isinstance(config, elmo_tagger.ElmoTaggerConfig)
    x = torch.cat([x, mix("input")], dim=1) if mixes else x
    first, *_ = torch_layers.both_ways(params, "layer_1", x, layer)
    first = torch.cat([first, layers[-1]], dim=1) if isinstance(config, taglm.TaglmConfig) else first
    last, *_ = torch_layers.both_ways(params, "layer_2", first, layer)
    last = torch.cat([last, mix("output")], dim=1) if mixes else last
    return {"last_hidden_state": last, "hidden_states": (x, first, last)}


def tagger_head(module: nn.Module) -> Head:
    return Head(module, outputs=("last_hidden_state",))


def glorot(inputs: int, outputs: int) -> float:
    """The standard deviation of Glorot's uniform distribution."""
    return math.sqrt(2 / (inputs + outputs))


INITIAL_TAGGER = tagger.TaggerConfig(
    vocab_size=500, word_dim=40, character_dim=40, character_features=64, hidden_size=64
)
TAGLM_ROW = Family(
    oracle=TorchOracle(
        dict.fromkeys((tagger.Tagger, taglm.Taglm, elmo_tagger.ElmoTagger), tagger_formula), deviation=0.5
    ),
    heads=(
        tagger_head(tagger.Tagger(TAGGER)),
        tagger_head(taglm.Taglm(TAGLM)),
        tagger_head(elmo_tagger.ElmoTagger(ELMO_TAGGER)),
        tagger_head(tagger.Tagger(dataclasses.replace(TAGGER, **GRUS))),
    ),
    bodies=(taglm.Taglm(TAGLM),),
    switches=(),
    trained=tagger_head(taglm.Taglm(TAGLM_TRAINED)),
    loops=False,
    sharded=("layer_1/forward/input/kernel", (5, 4, 3)),
    counts={},
    initial=tagger.Tagger(INITIAL_TAGGER),
    drawn=r"(kernel|embedding|filters)$",
    constants={"layer_./.*/bias": np.array([[0.0], [1.0], [0.0], [0.0]])},
    truncated=False,
    deviations={
        "vectors|characters": (1 / 40) ** 0.5,
        "filters": glorot(3 * 40, 3 * 64),
        "layer_1/.*/input": glorot(104, 4 * 64),
        "layer_2/.*/input": glorot(128, 4 * 64),
        "recurrent_kernel": glorot(64, 4 * 64),
    },
    uniform="",
    words="words/vectors/embedding",
    step=experiments.taglm,
    source=TaggedSource,
    learning=None,  # tests/finetuning/test_taggers.py has it learn
    batches={"spelled": spelled_tokens},
    views=READS_BOTH_WAYS,
)

# ---------------------------------------------------------------------------------------------------------- CVT

CVT_SIZES = {
    "vocab_size": 23,
    "word_dim": 4,
    "max_characters_per_token": 7,
    "character_dim": 3,
    "filter_widths": (2, 3),
    "filter_count": 4,
    "first_size": 10,
    "second_size": 9,
    "projection_size": 8,
    "parser_size": 3,
}
CVT = cvt.CvtConfig(**CVT_SIZES, dropout=0.0, unlabelled_dropout=0.0, attention_dropout=0.0)
CVT_TRAINED = cvt.CvtConfig(**CVT_SIZES | {"vocab_size": 24, "second_size": 10}, dropout=0.2, unlabelled_dropout=0.4)
PACKED_VIEWS = (cvt.PRIMARY, "full", "forwards", "backwards")
"""Modules that say something of every word: `future` of a first one and `past` of a last one mean nothing."""
LABELS = 3


@flax.struct.dataclass
class TaggedOutput:
    """The states of the encoder, and the scores of all modules side by side, float32 [B T modules labels]."""

    forward_state: jax.Array
    backward_state: jax.Array
    last_hidden_state: jax.Array
    logits: jax.Array


class Tagged(nn.Module):
    """The encoder with the modules of a tagging task."""

    config: cvt.CvtConfig
    names: tuple[str, ...]
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        characters: jax.Array,
        attention_mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> TaggedOutput:
        """As `Cvt`."""
        masks = {"attention_mask": attention_mask, "segment_ids": segment_ids}
        encoder = cvt.Cvt(self.config, self.execution, name="cvt")
        states = encoder(input_ids, characters, **masks, deterministic=deterministic)
        modules = cvt.TaggingModules(self.config, self.execution.dtype, LABELS, name="tags")
        found = modules(states, {}, self.names, deterministic)
        return TaggedOutput(*states, jnp.stack([found[name] for name in self.names], axis=2))


def tagged(config: cvt.CvtConfig, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """Section 3.1 of the paper, with all of its views."""
    x = [params["cvt/words/embedding"][text["input_ids"]] * params["cvt/word_scale"]]
    characters = params["cvt/characters/embedding"][text["characters"]].mT
    for number in range(len(config.filter_widths)):
        kernel, bias = (params[f"cvt/{name}_{number}"] for name in ("filters", "filter_bias"))
        x.append(torch.conv1d(characters, kernel.permute(2, 1, 0), bias).relu().amax(dim=2))
    first, *_ = torch_layers.both_ways(params, "cvt/lstm_1", torch.cat(x, dim=1), forget_bias=1.0)
    second, *_ = torch_layers.both_ways(params, "cvt/lstm_2", first, forget_bias=1.0)
    forward, backward = first.chunk(2, dim=1)
    nothing = torch.zeros_like(forward[:1])
    seen = {
        cvt.PRIMARY: torch.cat([first, second], dim=1),
        "full": torch.cat([first, second], dim=1),
        "forwards": forward,
        "backwards": backward,
        "future": torch.cat([nothing, forward[:-1]]),
        "past": torch.cat([backward[1:], nothing]),
    }
    scores = []
    for name in (cvt.PRIMARY, *cvt.TAGGING_VIEWS):
        if f"tags/{name}/hidden/kernel" in params:
            place = f"tags/{name}"
            hidden = seen[name] @ params[f"{place}/hidden/kernel"] + params[f"{place}/hidden/bias"]
            hidden = hidden if name == "full" else hidden.relu()
            scores.append(hidden @ params[f"{place}/labels/kernel"] + params[f"{place}/labels/bias"])
    states = {"forward_state": forward, "backward_state": backward, "last_hidden_state": second}
    return states | {"logits": torch.stack(scores, dim=1)}


CVT_INITIAL = cvt.CvtConfig(
    vocab_size=500,
    word_dim=40,
    character_dim=40,
    filter_widths=(3,),
    filter_count=100,
    first_size=64,
    second_size=64,
    projection_size=48,
)


FILTERS = sum(width * 50 * 100 + 100 for width in (2, 3, 4))
FIRST = 2 * ((600 + 512 + 1) * 4 * 1024 + 1024 * 512)
SECOND = 2 * ((1024 + 512 + 1) * 4 * 512 + 512 * 512)
CVT_ROW = Family(
    oracle=TorchOracle({Tagged: tagged}, deviation=0.4),
    heads=(Head(Tagged(CVT, PACKED_VIEWS)),),
    bodies=(Tagged(CVT, PACKED_VIEWS), Tagged(CVT, (cvt.PRIMARY, *cvt.TAGGING_VIEWS))),
    switches=(),
    trained=Head(Tagged(CVT_TRAINED, PACKED_VIEWS)),
    loops=False,
    sharded=("cvt/lstm_1/forward/input/kernel", (6, 4, 5)),
    counts={
        "original": (cvt.CvtConfig(), (Count(cvt.Cvt, FILTERS + FIRST + SECOND + 1, "^(filter|lstm|word_scale)"),))
    },
    initial=cvt.Cvt(CVT_INITIAL),
    drawn=r"(kernel|embedding|filters_\d)$",
    truncated=False,
    deviations={
        "words": (1 / 40) ** 0.5,
        "characters": glorot(CHARACTERS + 1, 40),
        "filters": glorot(3 * 40, 3 * 100),
        "lstm_1/.*/input": glorot(4 * 140, 4 * 64),
        "lstm_2/.*/input": glorot(4 * 96, 4 * 64),
        "recurrent_kernel": glorot(4 * 48, 4 * 64),
        "projection_kernel": glorot(64, 48),
    },
    constants={"word_scale": 1.0},
    uniform="",
    words="cvt/words/embedding",
    step=experiments.cvt,
    source=CrossViewSource,
    learning=None,  # tests/finetuning/cross_view/test_cross_view.py has it learn
    batches={"spelled": spelled_tokens},
    views=(View(earlier_in_sequence, "forward_state"), View(later_in_sequence, "backward_state"), View(same_sequence)),
)
