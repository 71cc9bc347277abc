"""A pretraining checkpoint of random parameters and a small task, for the tests of fine-tuning."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Data, Experiment, Training
from plmjax.layers.execution import Execution
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.training import checkpoints

WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "actor", "scene", "the", "was", "a"]


def config(vocab_size: int, **changes) -> BertConfig:
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    return BertConfig(vocab_size=vocab_size, **(sizes | changes))


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    texts = [" ".join(WORDS), *WORDS] * 5
    return tokenizers.train("wordpiece", 120, texts, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory, tokenizer) -> Path:
    """A run directory whose parameters are drawn at random, as after zero steps of pretraining."""
    model = config(tokenizer.vocabulary.size)
    module = model.for_pretraining(Execution())
    params = nn.meta.unbox(module.init(jax.random.key(1), jnp.zeros((1, 8), jnp.int32))["params"])
    run = Experiment(
        model=model,
        objective=BertPretraining(),
        data=Data(layout=SentencePairs(), sequence_length=32),
        training=Training(batch_size=8),
    )
    workdir = tmp_path_factory.mktemp("pretrained")
    tokenizer.save(workdir / "saved")
    checkpoints.save_parameters(workdir, params, run, checkpoints.tokenizer_files(workdir / "saved"))
    return workdir


@pytest.fixture(scope="session")
def sentiment(tmp_path_factory) -> tuple[str, str]:
    """(train, validation) files of sentences that are positive iff they hold a word of praise."""
    directory = tmp_path_factory.mktemp("task")
    draws = np.random.default_rng(0)
    paths = []
    for split, rows in (("train", 200), ("validation", 37)):
        lines = ["label\tsentence"]
        for _ in range(rows):
            positive = bool(draws.integers(2))
            judgement = draws.choice(WORDS[:3] if positive else WORDS[3:6])
            rest = draws.choice(WORDS[6:], size=draws.integers(1, 9))
            lines.append(f"{'positive' if positive else 'negative'}\t{' '.join([*rest[:3], judgement, *rest[3:]])}")
        path = directory / f"{split}.tsv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths.append(str(path))
    return tuple(paths)
