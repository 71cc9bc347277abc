"""Structured pruning: heads and features are removed, so that the matrices of the layers become smaller."""

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Prunable
from plmjax.errors import UserError


def removable_parts(model: ModelConfig) -> Prunable:
    """Return the removable parts of a model.

    Raises:
        UserError: the layers of its system always have one size.
    """
    if model.system.prunable is None:
        raise UserError(
            f"Expected a BERT, a DistilBERT or a RoBERTa, whose layers may differ in their heads and features, found "
            f"{model.system}; take a method that sets single weights to 0."
        )
    return model.system.prunable
