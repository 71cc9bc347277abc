"""`plmjax compress share`: the layers of a group share their parameters, as in ALBERT (Lan et al., arXiv 1909.11942).

The shared parameters are the means over the layers. The result is an ALBERT (plmjax/models/albert.py), which must be
trained further, unless every layer has its own group.

A BERT of width D becomes an ALBERT with embeddings of D features, and an identity map between embeddings and layers.
ALBERT has no next sentence prediction: a BERT with both tasks keeps the masked language model, without a pooler.
"""

import dataclasses
from pathlib import Path

import numpy as np

from plmjax.compression.compression import Params
from plmjax.compression.run import Source, hold_output, write
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.compressed.configs import LowRankConfig
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import Objective
from plmjax.objectives.sentence_pairs import MaskedLanguageModelWithPairs

BERT, ALBERT = "bert/", "albert/"
"""Prefixes of the parameters of both encoders."""
STACK, GROUP = "encoder/layers/", "encoder/group_{}/"
"""Paths of BERT's stacked layers and of a group within their encoders."""
PAIRS = ("next_sentence/", f"{ALBERT}pooler/")
"""Prefixes of the parameters that predict the next sentence."""


@hold_output
def share(checkpoint: str | Path, output: Path, groups: int) -> str:
    """Share the parameters of the layers of a checkpoint, and return a line about the result.

    Args:
        checkpoint: a run directory or a checkpoint of a BERT or an ALBERT.
        output: the run directory to write.
        groups: number of groups of layers.

    Raises:
        UserError: the model is neither a BERT nor an ALBERT, its layers differ in size, there are more groups than
            layers, or the output has a run.
    """
    source = Source.read(checkpoint)
    run = source.description.experiment
    model = with_groups(run.model, groups)
    params = group_parameters(source.params, run.model, model)
    objective = without_sentence_pairs(run.objective) if isinstance(run.model, BertConfig) else run.objective
    if objective is not run.objective:
        params = {path: value for path, value in params.items() if not path.startswith(PAIRS)}
    run = dataclasses.replace(run, model=model, objective=objective)
    line = write(output, source, params, run=run, by="share", settings={"groups": groups})
    return f"shared     {line} in {output}; groups of layers: {' '.join(map(str, model.group_sizes))}"


def with_groups(model: ModelConfig, groups: int) -> AlbertConfig:
    """Return the sizes of the ALBERT with this number of groups.

    Raises:
        UserError: the model is neither a BERT nor an ALBERT, its layers differ in size, or there are more groups than
            layers.
    """
    if not isinstance(model, BertConfig | AlbertConfig):
        raise UserError(
            f"Expected a BERT or an ALBERT to share the parameters of its layers, found {model.system}; share another "
            f"checkpoint."
        )
    if isinstance(model, LowRankConfig):
        found = "matrices of a lower rank" if model.ranks else "layers without some of their heads and features"
        raise UserError(
            f"Expected layers of one size with whole matrices, found {found}; share the checkpoint that it was made "
            f"from, and compress the result."
        )
    if not 1 <= groups <= model.depth:
        raise UserError(f"Expected --groups from 1 to the {model.depth} layers, found {groups}; change it.")
    if isinstance(model, AlbertConfig):
        return dataclasses.replace(model, num_hidden_groups=groups)
    return AlbertConfig.of_bert(model, groups)


def without_sentence_pairs(objective: Objective | None) -> Objective | None:
    """Return the masked language model of an objective with next sentence prediction, or the objective itself."""
    if not isinstance(objective, MaskedLanguageModelWithPairs):
        return objective
    names = [field.name for field in dataclasses.fields(MaskedLanguageModel)]
    return MaskedLanguageModel(**{name: getattr(objective, name) for name in names})


def group_parameters(params: Params, before: ModelConfig, after: AlbertConfig) -> Params:
    """Return the parameters of an ALBERT from those of a BERT, or of an ALBERT with other groups."""
    if isinstance(before, BertConfig):
        layers = [
            {f"layer_0/{path}": value[layer] for path, value in _below(params, f"{BERT}{STACK}").items()}
            for layer in range(before.depth)
        ]
        kept = {path: value for path, value in params.items() if not path.startswith(f"{BERT}{STACK}")}
        kept = {f"{ALBERT}{path.removeprefix(BERT)}" if path.startswith(BERT) else path: kept[path] for path in kept}
        mapping = f"{ALBERT}encoder/embedding_hidden_mapping_in"
        kept[f"{mapping}/kernel"] = np.eye(before.width, dtype=np.float32)
        kept[f"{mapping}/bias"] = np.zeros(before.width, np.float32)
    else:
        own = [f"{ALBERT}{GROUP}".format(group) for group in range(before.num_hidden_groups)]
        layers = [_below(params, own[group]) for group, size in enumerate(before.group_sizes) for _ in range(size)]
        kept = {path: value for path, value in params.items() if not path.startswith(tuple(own))}
    first = 0
    for group, size in enumerate(after.group_sizes):
        members, first = layers[first : first + size], first + size
        for path in members[0]:
            mean = np.mean([member[path] for member in members], axis=0, dtype=np.float64)
            kept[f"{ALBERT}{GROUP}".format(group) + path] = mean.astype(np.float32)
    return kept


def _below(params: Params, prefix: str) -> Params:
    """Return the parameters whose path begins with a prefix, without the prefix."""
    return {path.removeprefix(prefix): value for path, value in params.items() if path.startswith(prefix)}
