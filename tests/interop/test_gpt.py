"""Properties of GPT's checkpoints, and its tokenizer's published files."""

import dataclasses
import json
from pathlib import Path

import chex
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.models.gpt import GptForCausalLM, GptForSequenceClassification
from tests.families.decoders import GPT
from tests.interop.test_huggingface import rewrite
from tests.systems.modules import random_params

TEXTS = ("The CAT sat\x00 on the mat, didn't it?", "Ünïcode … dog_ran 中文", "a <unk> b")


def test_the_released_files_are_read(tmp_path: Path) -> None:
    """openai-gpt as published: names of the model alone, and the causal masks, which are no parameters."""
    module = GptForCausalLM(GPT)
    params = random_params(module)
    huggingface.save(module, params, tmp_path)
    masks = {f"h.{layer}.attn.bias": np.ones((1, 1, 19, 19), np.float32) for layer in range(3)}
    rewrite(tmp_path, lambda tensors: masks | {name.removeprefix("transformer."): x for name, x in tensors.items()})
    found, loaded = huggingface.load(tmp_path)
    assert found == module
    chex.assert_trees_all_equal(loaded, params)


def test_what_cannot_be_expressed_is_refused(tmp_path: Path) -> None:
    classifier = GptForSequenceClassification(GPT)
    for change, message in (
        ({"both_orders": True}, "reads a pair once"),
        ({"activation_function": "gelu"}, "activation of gelu_new or relu"),
        ({"pad_token_id": None}, "id of padding"),
    ):
        module = classifier.clone(config=dataclasses.replace(GPT, **change))
        with pytest.raises(UserError, match=message):
            huggingface.save(module, random_params(module), tmp_path / "refused")
    huggingface.save(classifier, random_params(classifier), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"afn": "tanh"}, "afn of gelu or relu or silu"),
        ({"summary_type": "mean"}, "summary_type"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message):
            huggingface.load(tmp_path)


def test_the_published_tokenizer_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    """vocab.json and merges.txt alone; with the tokens of a task it is saved as files that transformers opens."""
    import transformers

    trained = tokenizers.train("bpe", 120, [*TEXTS[:2], "the dog ran over the cat"] * 9, tmp_path / "trained")
    folder = tmp_path / "published"
    folder.mkdir()
    own = [token for token in trained.tokens(range(trained.vocabulary.size)) if not token.startswith("[")]
    (folder / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(["<unk>", *own])}))
    (folder / "merges.txt").write_bytes((tmp_path / "trained" / "merges.txt").read_bytes())
    published = tokenizers.load(folder)
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(folder)
    read = published.reading().encode_batch(TEXTS)  # transformers reads <unk> in a text
    assert read == theirs(list(TEXTS))["input_ids"]
    special = published.with_special(("start", "delimiter", "extract"))
    special.save(tmp_path / "special")
    reopened = transformers.AutoTokenizer.from_pretrained(tmp_path / "special")
    assert special.reading().encode_batch(TEXTS) == reopened(list(TEXTS))["input_ids"] == read
    names = ["_start_", "_delimiter_", "_classify_"]
    assert reopened.convert_tokens_to_ids(names) == list(special.vocabulary.others.values())
    assert tokenizers.load(tmp_path / "special").fingerprint == special.fingerprint
