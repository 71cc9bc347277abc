"""The constants of a run: computed once from the training text, the tokenizer and other checkpoints."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.objective import ConstantSources, Objective
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description


def placeholder(vocabulary: Vocabulary) -> ConstantSources:
    """Return sources of the right shapes without text or checkpoint, to plan a run and to trace shapes."""
    return ConstantSources(
        vocabulary,
        np.zeros(vocabulary.size, np.int64),
        lambda: [""] * vocabulary.size,
        lambda checkpoint, init: init(jax.random.key(0)),
    )


def shapes(objective: Objective, config: Any, vocabulary: Vocabulary) -> Any:
    """Return the constants of an objective as ShapeDtypeStructs, boxed with their logical axes; nothing is computed."""
    return jax.eval_shape(lambda: objective.constants(config, placeholder(vocabulary)))


def of_run(vocabulary: Vocabulary, token_counts: np.ndarray | None, description: Description) -> ConstantSources:
    """Return the sources of a run's constants.

    Args:
        token_counts: int64 [V]; None, as in fine-tuning, counts 0 for every token.
        description: description of the run, for its tokenizer.
    """
    counts = np.zeros(vocabulary.size, np.int64)
    if token_counts is not None:
        counts[: len(token_counts)] = token_counts

    def texts() -> list[str]:
        return description.load_tokenizer().tokens(range(vocabulary.size))

    return ConstantSources(vocabulary, counts, texts, _parameters)


def _parameters(checkpoint: str, init: Callable[[jax.Array], Any]) -> Any:
    """Return the parameters of a checkpoint, boxed like those that `init` returns.

    Raises:
        UserError: the checkpoint lacks one of them, or has it in another shape.
    """
    expected = jax.eval_shape(init, jax.random.key(0))
    loaded, _ = checkpoints.load_parameters(checkpoint)
    found = flax.traverse_util.flatten_dict(loaded, sep="/")

    def is_box(leaf: Any) -> bool:
        return isinstance(leaf, nn.meta.AxisMetadata)

    boxes, structure = jax.tree_util.tree_flatten_with_path(expected, is_leaf=is_box)
    values = []
    for path, box in boxes:
        name = "/".join(str(part.key) for part in path)
        shape = nn.meta.unbox(box).shape
        if name not in found or found[name].shape != shape:
            had = found[name].shape if name in found else "no such parameter"
            raise UserError(
                f"Expected {name} of shape {shape} in the checkpoint {checkpoint}, found {had}; name a checkpoint "
                f"of the model that the objective describes."
            )
        values.append(box.replace_boxed(found[name]) if is_box(box) else found[name])
    return jax.tree.unflatten(structure, values)
