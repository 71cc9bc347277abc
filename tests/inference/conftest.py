"""A language model of random parameters that the tests of this folder share."""

from collections.abc import Callable, Sequence
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.data.layouts import Blocks
from plmjax.experiment import Data, Experiment
from plmjax.layers.execution import Execution
from plmjax.models.gpt2 import Gpt2Config
from plmjax.objectives.next_token import NextToken
from plmjax.training import checkpoints

WINDOW = 24

Oracle = Callable[[Sequence[int]], np.ndarray]


@pytest.fixture(scope="session")
def decoder_run(prose: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a small GPT-2 whose random parameters are large enough that tokens differ."""
    folder = tmp_path_factory.mktemp("decoder")
    tokenizer = tokenizers.train("byte-bpe", 300, [prose.read_text(encoding="utf-8")], folder / "tokenizer")
    sizes = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64, "initializer_range": 0.3}
    config = Gpt2Config(vocab_size=tokenizer.vocabulary.size, bos_token_id=None, eos_token_id=None, **sizes)
    module = config.for_pretraining(Execution())
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(3), jnp.zeros((1, 2), jnp.int32)))["params"]
    run = Experiment(model=config, objective=NextToken(), data=Data(layout=Blocks(), sequence_length=WINDOW))
    checkpoints.save_parameters(folder / "run", params, run, checkpoints.tokenizer_files(folder / "tokenizer"))
    return folder / "run"


@pytest.fixture(scope="session")
def oracle(decoder_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Tokens -> log-probabilities of the token after each, float64 [T V], of `decoder_run` in transformers."""
    import torch
    import transformers

    from plmjax.exchange.run_directories import export_checkpoint

    folder = tmp_path_factory.mktemp("exported")
    export_checkpoint(decoder_run, folder)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()

    def log_probabilities(tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([list(tokens)])).logits[0].double(), -1).numpy()

    return log_probabilities
