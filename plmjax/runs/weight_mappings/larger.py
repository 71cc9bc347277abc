"""A larger model that starts from a smaller one of its system, as ModernBERT-Large did (Warner et al. 2024, A.2).

Weights are tiled from the middle: along each axis the smaller model's values are put in the middle, and are repeated
cyclically on both sides. Layer i starts from layer round(i L / L') of the smaller model's L, as in
Gopher (Rae et al. 2021). Source: AnswerDotAI/ModernBERT, src/bert_layers/{initialization,model}.py.

Deviation: heads are never divided. The released code tiles the features of all heads as one axis. The result is the
same for ModernBERT's two sizes, but a head is divided if an odd number of heads is added.
Deviation: the index of the smaller model's layer is at most that of its last layer. The released code fails for some
depths, such as 7 and 19.
Deviation: the attention of ModernBERT's layer 0 has no norm, because the embeddings are normalised. A later layer that
starts from layer 0 takes the norm of the embeddings.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import abstract_parameters
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.experiment import WeightMapping
from plmjax.models.modernbert.modernbert import ModernBertConfig

LAYERS, HEAD = "layers", "head"
"""Logical axes: the layers of a stack, and the features of one head."""
_OF_STACK = re.compile(r"(.+?)/(first_layers|layers|last_layers)/layer_(\d+)/(.+)")
"""Path of a parameter in one of ModernBERT's stacks."""


def start_layers(smaller: int, larger: int) -> np.ndarray:
    """Return the index of the smaller model's layer from which each layer of the larger model starts, int [larger]."""
    return np.array([min(round(layer * smaller / larger), smaller - 1) for layer in range(larger)])


def tile_from_middle(smaller: int, larger: int) -> np.ndarray:
    """Return the index along an axis of the smaller model for each index of the larger model, int [larger]."""
    return (np.arange(larger) - (larger - smaller) // 2) % smaller


def enlarge(array: np.ndarray, shape: Sequence[int], axes: Sequence[str | None]) -> np.ndarray:
    """Enlarge a parameter to a shape: the axis of layers by `start_layers`, all other axes by `tile_from_middle`.

    axes: the logical name of each axis.

    Raises:
        UserError: an axis would be shorter, or the head size would change.
    """
    for axis, (size, name) in enumerate(zip(shape, axes, strict=True)):
        before = array.shape[axis]
        if before > size or (name == HEAD and before != size):
            kind = "as large" if name == HEAD else "at least as large"
            raise UserError(
                f"Expected a larger model with the axis {name} {kind} as that of the checkpoint, {before}, found "
                f"{size}; change --weight_mapping.larger, or name another checkpoint in --from."
            )
        indices = start_layers(before, size) if name == LAYERS else tile_from_middle(before, size)
        array = array.take(indices, axis)
    return array


@dataclasses.dataclass(frozen=True)
class LargerFromSmaller(WeightMapping):
    """A larger model of the checkpoint's system, whose weights are those of the checkpoint, tiled from the middle."""

    larger: ModelConfig = ModernBertConfig.large()
    """Sizes of the larger model; its vocabulary is that of the checkpoint."""

    def model(self, origin: Any) -> Any:
        """Return the larger model with the checkpoint's vocabulary.

        Raises:
            UserError: the checkpoint's model is of another class.
        """
        if type(origin) is not type(self.larger):
            raise UserError(
                f"Expected a checkpoint of a smaller {type(self.larger).__name__}, found {type(origin).__name__}; name "
                f"another one in --from, or change the experiment's weight_mapping."
            )
        names = [field.name for field in dataclasses.fields(origin)]
        ids = {name: getattr(origin, name) for name in names if name.endswith("_token_id")}
        return dataclasses.replace(self.larger, vocab_size=origin.vocab_size, **ids)

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return the larger model's parameters. Those of heads that the checkpoint lacks are left out.

        Raises:
            UserError: a size of the model is below that of the checkpoint.
        """
        module = model.module(Purpose.PRETRAINING, Execution())
        tree = abstract_parameters(module, {"input_ids": jnp.zeros((1, 1), jnp.int32)})
        boxes = flax.traverse_util.flatten_dict(tree, sep="/")
        own, whole, mapped = _join_stacks(params, origin), {}, {}
        for path, box in boxes.items():
            name, layers = _place(path, model)
            shape = (model.depth, *box.value.shape[1:]) if layers is not None else box.value.shape
            if name in own and name not in whole:
                whole[name] = enlarge(own[name], shape, box.names)
            if name in own:
                mapped[path] = whole[name] if layers is None else whole[name][layers]
        return mapped


def _place(path: str, config: Any) -> tuple[str, np.ndarray | None]:
    """Return the path of a ModernBERT parameter with all layers in one stack, and the layers that `path` has of them.

    For a parameter outside ModernBERT's stacks, return `path` and None.
    """
    found = _OF_STACK.fullmatch(path) if isinstance(config, ModernBertConfig) else None
    if found is None:
        return path, None
    run = next(run for run in config.layer_runs if run.name == found[2])
    return f"{found[1]}/{found[4]}", run.first + int(found[3]) + len(run.kinds) * np.arange(run.repetitions)


def _join_stacks(params: Mapping[str, np.ndarray], config: Any) -> dict[str, np.ndarray]:
    """Return the parameters with the stacks of ModernBERT joined: one array of all layers for each, [L ...]."""
    joined: dict[str, np.ndarray] = {}
    for path, array in params.items():
        name, layers = _place(path, config)
        if layers is None:
            joined[name] = array
            continue
        whole = joined.setdefault(name, np.empty((config.depth, *array.shape[1:]), array.dtype))
        whole[layers] = array
        if layers[0] == 1 and config.embedding_norm and "/attention_norm/" in path:
            whole[0] = params[path.partition("/")[0] + "/embedding_norm/" + path.rpartition("/")[2]]
    return joined
