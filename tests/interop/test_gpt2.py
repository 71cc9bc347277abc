"""GPT-2 as other versions and other classes of transformers write it, and what is refused."""

import json
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest
import safetensors.numpy

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.interop import huggingface, run_directories
from plmjax.models.gpt2 import Gpt2Config, Gpt2ForCausalLM, Gpt2Model
from plmjax.objectives.next_token import NextToken
from plmjax.training.checkpoints import checkpoints
from tests.optional import needs_torch, torch, transformers
from tests.systems.modules import random_params

CONFIG = Gpt2Config(vocab_size=300, n_positions=19, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0)
MODEL = Gpt2ForCausalLM(CONFIG)


@pytest.fixture
def saved(tmp_path):
    """A folder of the model, and its parameters."""
    params = random_params(MODEL)
    huggingface.save(MODEL, params, tmp_path)
    return tmp_path, params


def rewritten(folder: Path, config: dict[str, Any], tensors: Any = None) -> None:
    """The folder with other settings, and with what `tensors` makes of its tensors."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    if tensors is not None:
        weights = folder / "model.safetensors"
        content = tensors(safetensors.numpy.load_file(weights))
        safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in content.items()}, weights)


def test_the_released_names_and_buffers_are_read(saved):
    """The published files have no prefix, and every layer's causal mask as a buffer."""
    folder, params = saved

    def released(tensors):
        masks = {f"h.{layer}.attn.bias": np.tri(19, dtype=np.float32)[None, None] for layer in range(2)}
        masks |= {f"h.{layer}.attn.masked_bias": np.float32([-1e4]) for layer in range(2)}
        return {name.removeprefix("transformer."): array for name, array in tensors.items()} | masks

    rewritten(folder, {"n_ctx": 19}, released)
    found, loaded = huggingface.load(folder)
    assert found == MODEL
    chex.assert_trees_all_equal(loaded, params)


def test_the_output_layer_is_the_word_table(saved):
    folder, params = saved
    words = "transformer.wte.weight"
    rewritten(folder, {}, lambda tensors: tensors | {"lm_head.weight": tensors[words].copy()})
    chex.assert_trees_all_equal(huggingface.load(folder)[1], params)
    rewritten(folder, {}, lambda tensors: tensors | {"lm_head.weight": tensors[words] + 1})
    with pytest.raises(UserError, match=r"Expected lm_head.weight tied to transformer.wte.weight"):
        huggingface.load(folder)
    assert type(huggingface.load(folder, architecture="GPT2Model")[0]) is Gpt2Model  # which has no output layer


def test_names_of_settings_that_transformers_takes_too(saved):
    folder, params = saved
    file = folder / "config.json"
    config = json.loads(file.read_text())
    names = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    names |= {"n_positions": "max_position_embeddings"}
    file.write_text(json.dumps({names.get(name, name): value for name, value in config.items()}))
    found, loaded = huggingface.load(folder)
    assert found == MODEL
    chex.assert_trees_all_equal(loaded, params)


@pytest.mark.parametrize(
    "setting",
    [
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"reorder_and_upcast_attn": True},
        {"add_cross_attention": True},
        {"tie_word_embeddings": False},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_a_setting_that_changes_what_is_computed_is_refused(saved, setting):
    folder, _ = saved
    rewritten(folder, setting)
    (name,) = setting
    with pytest.raises(UserError, match=f"Expected {name} = .*, which is all that this GPT2 implements"):
        huggingface.load(folder)


def test_the_head_for_choices_has_one_form_and_other_classes_do_not_read_it(saved):
    folder, _ = saved
    rewritten(folder, {"summary_type": "mean"})
    assert huggingface.load(folder)[0] == MODEL
    rewritten(folder, {"architectures": ["GPT2DoubleHeadsModel"]})
    with pytest.raises(UserError, match="Expected summary_type = 'cls_index' in the config"):
        huggingface.load(folder)


def test_several_end_tokens_are_refused(saved):
    folder, _ = saved
    rewritten(folder, {"eos_token_id": [0, 7]})
    with pytest.raises(UserError, match=r"Expected int as the config's eos_token_id, found \[0, 7\]"):
        huggingface.load(folder)


@needs_torch
def test_a_folder_becomes_a_run_and_a_folder_again(saved, tmp_path_factory):
    """With its tokenizer; the imported run is a language model on blocks, whatever class was imported."""
    folder, params = saved
    tokenizers.train("gpt2-bpe", 300, ["one two three, and four times five"] * 9, folder)
    run, out = tmp_path_factory.mktemp("run") / "run", tmp_path_factory.mktemp("out")
    said = run_directories.import_checkpoint(folder, run)
    assert "GPT2LMHeadModel" in said and "outputs equal those of transformers" in said
    found, description = checkpoints.load_parameters(run)
    chex.assert_trees_all_equal(found, params)
    assert description.experiment.objective == NextToken() and description.experiment.model == CONFIG
    run_directories.export_checkpoint(run, out)
    assert (out / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer("one and six")["input_ids"] == tokenizers.load(folder).encode("one and six")
    assert tokenizer.eos_token_id == 0
    assert tokenizer.model_max_length == CONFIG.n_positions
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert theirs.config.n_inner is None and theirs.lm_head.weight is theirs.transformer.wte.weight

    bare = Gpt2Model(CONFIG)
    huggingface.save(bare, params["gpt2"], folder)
    run_directories.import_checkpoint(folder, run.with_name("bare"))
    chex.assert_trees_all_equal(checkpoints.load_parameters(run.with_name("bare"))[0], params)


@needs_torch
def test_a_classifier_of_transformers_is_imported_and_exported(saved, tmp_path):
    """Its last token is found by the id of padding, without which it is refused."""
    folder, _ = saved
    tokenizers.train("gpt2-bpe", 300, ["one two three, and four times five"] * 9, folder)
    config = transformers.GPT2Config.from_pretrained(folder, num_labels=3, pad_token_id=7)
    torch.manual_seed(0)
    theirs = transformers.GPT2ForSequenceClassification(config)
    theirs.save_pretrained(folder)
    said = run_directories.import_checkpoint(folder, tmp_path / "run")
    assert "GPT2ForSequenceClassification" in said and "outputs equal those of transformers" in said
    said = run_directories.export_checkpoint(tmp_path / "run", tmp_path / "out")
    assert said.startswith("exported   GPT2ForSequenceClassification of step 0")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    ids = torch.tensor([[5, 9, 11, 2], [5, 9, 7, 7]])
    torch.testing.assert_close(again(ids).logits, theirs.eval()(ids).logits, rtol=0, atol=1e-5)
    rewritten(folder, {"pad_token_id": None})
    with pytest.raises(UserError, match="id of padding, by which GPT2ForSequenceClassification finds the last token"):
        huggingface.load(folder)
