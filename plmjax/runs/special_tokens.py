"""Special tokens that fine-tuning needs and pretraining did not have: start, delimiter and extract of GPT.

They are added before a fine-tuning: to the tokenizer, after all its tokens, and to the model, as new rows of the
embedding table. The rows are initialized like the table (openai/finetune-transformer-lm train.py). A checkpoint that
has them already, such as a fine-tuned one, does not change.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.experiment import Experiment


class Extended(NamedTuple):
    """An experiment, its parameters and its tokenizer, with all special tokens of the model's template."""

    experiment: Experiment
    params: Any
    tokenizer: Any


def add(run: Experiment, params: Any, tokenizer: Any) -> Extended:
    """Add the special tokens of the model's template to the experiment, the parameters and the tokenizer.

    Nothing changes if no token is missing or the model has no embedding table for more tokens.

    params: a tree of host arrays, or None if all parameters are initialized.
    tokenizer: a plmjax.data.tokenizers.Tokenizer.
    """
    model = run.model
    missing = model.template.missing(tokenizer.vocabulary) if model.system.token_table is not None else []
    if not missing or "document_end" in missing:  # as in pretraining; the check of the template raises the error
        return Extended(run, params, tokenizer)
    first = tokenizer.vocabulary.size
    tokenizer = tokenizer.with_special(missing)
    stop, padding = tokenizer.vocabulary.size, max(tokenizer.vocabulary.pad, 0)
    run = dataclasses.replace(run, model=model.with_tokens(max(model.vocab_size, stop), padding))
    if params is not None:
        params = _with_rows(params, model, first, stop=stop, seed=run.training.seed)
    return Extended(run, params, tokenizer)


def _with_rows(params: Any, model: ModelConfig, first: int, *, stop: int, seed: int) -> Any:
    """Return the parameters with new embeddings for the tokens `first` to `stop` - 1.

    Rows that the table already has for these tokens are replaced.
    """
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    table = flat[model.system.token_table]
    drawn = model.initializer(jax.random.key(seed), (stop - first, table.shape[1]), jnp.float32)
    tokens, behind = np.split(table, [model.vocab_size])
    flat[model.system.token_table] = np.concatenate([tokens[:first], drawn, tokens[stop:], behind])
    return flax.traverse_util.unflatten_dict(flat, sep="/")
