"""Special tokens that the rows of a task need and a model was pretrained without: start, delimiter, extract of a GPT.

They are added when a fine-tuning starts, to the tokenizer behind all its tokens and to the model as rows of its table,
which are drawn as the table was (openai/finetune-transformer-lm train.py). A checkpoint that has them already, such as
one that was fine-tuned before, is taken as it is.
"""

import dataclasses
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.experiment import Experiment


def add(run: Experiment, params: Any, tokenizer: Any) -> tuple[Experiment, Any, Any]:
    """The experiment, the parameters and the tokenizer with the special tokens of the model's rows.

    params: a tree of arrays on the host; None where all parameters are drawn. tokenizer: a
    plmjax.data.tokenizers.Tokenizer. All are the same where nothing is missing, or the model takes no further tokens.
    """
    model = run.model
    missing = model.template.missing(tokenizer.vocabulary) if model.system.token_table is not None else []
    if not missing or "document_end" in missing:  # which pretraining has; the row's own check says what to do
        return run, params, tokenizer
    first = tokenizer.vocabulary.size
    tokenizer = tokenizer.with_special(missing)
    stop, padding = tokenizer.vocabulary.size, max(tokenizer.vocabulary.pad, 0)
    run = dataclasses.replace(run, model=model.with_tokens(max(model.vocab_size, stop), padding))
    if params is not None:
        params = _with_rows(params, model, first, stop, run.training.seed)
    return run, params, tokenizer


def _with_rows(params: Any, model: ModelConfig, first: int, stop: int, seed: int) -> Any:
    """The parameters with new vectors for the tokens first .. stop - 1, some of which the table may have rows for."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    table = flat[model.system.token_table]
    drawn = model.initializer(jax.random.key(seed), (stop - first, table.shape[1]), jnp.float32)
    tokens, behind = np.split(table, [model.vocab_size])
    flat[model.system.token_table] = np.concatenate([tokens[:first], drawn, tokens[stop:], behind])
    return flax.traverse_util.unflatten_dict(flat, sep="/")
