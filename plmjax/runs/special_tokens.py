"""Special tokens of a task that the model was pretrained without: start, delimiter and extract of GPT.

They are added at the start of a fine-tuning: to the tokenizer, after all its tokens, and to the model, as new rows of
its embedding table. The rows are initialized like the table (openai/finetune-transformer-lm train.py). A checkpoint
that has them already, such as a fine-tuned one, is left unchanged.
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
    """An experiment, its parameters and its tokenizer with the special tokens of the model's rows."""

    experiment: Experiment
    params: Any
    tokenizer: Any


def add(run: Experiment, params: Any, tokenizer: Any) -> Extended:
    """Add the special tokens of the model's rows to the experiment, the parameters and the tokenizer.

    params: a tree of arrays on the host, or None where all parameters are initialized. tokenizer: a
    plmjax.data.tokenizers.Tokenizer. All are unchanged if no token is missing or the model takes no further tokens.
    """
    model = run.model
    missing = model.template.missing(tokenizer.vocabulary) if model.system.token_table is not None else []
    if not missing or "document_end" in missing:  # as in pretraining; the row's own check explains this
        return Extended(run, params, tokenizer)
    first = tokenizer.vocabulary.size
    tokenizer = tokenizer.with_special(missing)
    stop, padding = tokenizer.vocabulary.size, max(tokenizer.vocabulary.pad, 0)
    run = dataclasses.replace(run, model=model.with_tokens(max(model.vocab_size, stop), padding))
    if params is not None:
        params = _with_rows(params, model, first, stop=stop, seed=run.training.seed)
    return Extended(run, params, tokenizer)


def _with_rows(params: Any, model: ModelConfig, first: int, *, stop: int, seed: int) -> Any:
    """Return the parameters with new embeddings for the tokens first .. stop - 1.

    The table may already have rows for some of these tokens.
    """
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    table = flat[model.system.token_table]
    drawn = model.initializer(jax.random.key(seed), (stop - first, table.shape[1]), jnp.float32)
    tokens, behind = np.split(table, [model.vocab_size])
    flat[model.system.token_table] = np.concatenate([tokens[:first], drawn, tokens[stop:], behind])
    return flax.traverse_util.unflatten_dict(flat, sep="/")
