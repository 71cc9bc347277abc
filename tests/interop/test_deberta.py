"""DeBERTa in transformers: its config, released files, both networks of a run, and the ids of its tokenizer."""

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import chex
import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.data import tokenizers
from plmjax.data.layouts import FullSentences
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.inference.embed import embed_file
from plmjax.inference.fill_mask import fill_mask
from plmjax.interop import deberta as interop
from plmjax.interop import huggingface, tokenizer_files
from plmjax.interop.run_directories import export_checkpoint
from plmjax.models.deberta.deberta import DebertaConfig
from plmjax.models.deberta.encoder import DebertaModel
from plmjax.models.deberta.heads import DebertaForMaskedLM
from plmjax.models.deberta.pretraining import DebertaForPreTraining
from plmjax.objectives.deberta import DebertaPretraining
from plmjax.runs.finetuning import in_head
from plmjax.runs.init_from import InitFrom
from plmjax.runs.weight_mappings.deberta import BesideGenerator
from plmjax.training.checkpoints import checkpoints
from tests.families.modern import DEBERTA
from tests.interop.test_import_export import VOCABULARY, tokenizer  # noqa: F401  a fixture
from tests.optional import needs_torch, transformers
from tests.systems.modules import random_params

RELEASED = {
    "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512,
    "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1, "position_biased_input": False,
    "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 0, "vocab_size": 128100,
}  # fmt: skip
"""The settings of version 3 base."""


REFUSED = {
    "a plain BERT": ({"relative_attention": False}, "relative_attention = True"),
    "a missing setting, which is version 1's": ({"norm_rel_ebd": None}, "norm_rel_ebd = 'layer_norm'"),
    "embeddings of another width": ({"embedding_size": 128}, "embedding_size = 768"),
    "the older head": ({"architectures": ["DebertaV2ForMaskedLM"]}, "Expected legacy = false"),
    "another kind of scores": ({"pos_att_type": "p2c|p2p"}, "--model.pos_att_type of p2c and c2p"),
    "a number of kinds": ({"pos_att_type": 2}, "as the config's pos_att_type, found 2"),
    "tanh, which transformers has by default": ({"conv_kernel_size": 3}, "'tanh'"),
}  # fmt: skip


def test_the_published_settings_give_the_published_size_and_others_one_sentence() -> None:
    assert interop.read_config(RELEASED) == DebertaConfig.base()
    xlarge = {"hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24, "intermediate_size": 6144}
    version_2 = RELEASED | xlarge | {"conv_kernel_size": 3, "conv_act": "gelu"}
    assert interop.read_config(version_2) == DebertaConfig.v2_xlarge()
    for changes, said in REFUSED.values():
        with pytest.raises(UserError, match=re.escape(said)):
            interop.read_config(RELEASED | changes)


def run_of_both(folder: Path, vocabulary: Path) -> tuple[Experiment, dict[str, Any]]:
    """A run of both networks and its parameters."""
    config = dataclasses.replace(DEBERTA, vocab_size=max(len(VOCABULARY), DEBERTA.vocab_size))
    run = Experiment(model=config, objective=DebertaPretraining(), data=Data(FullSentences()))
    params = random_params(DebertaForPreTraining(config))
    checkpoints.save_parameters(folder, params, run, checkpoints.tokenizer_files(vocabulary))
    return run, params


@needs_torch
def test_both_networks_are_exported_and_the_discriminator_embeds_and_begins_a_task(tmp_path, tokenizer) -> None:  # noqa: F811
    """As sums of two tables. The lost decoder is said, and the generator is compared without it."""
    run, params = run_of_both(tmp_path / "run", tokenizer)
    total = params["generator"]["embeddings"]["word_embeddings"]["embedding"]
    total = total + params["deberta"]["embeddings"]["word_embeddings"]["residual"]
    stored, _ = checkpoints.load_parameters(tmp_path / "run", with_derived=False)
    chex.assert_trees_all_equal(stored, params)
    said = export_checkpoint(tmp_path / "run", tmp_path / "discriminator")
    assert "DebertaV2Model of step 0" in said and "lost" not in said
    found, loaded = huggingface.load(tmp_path / "discriminator")
    assert type(found) is DebertaModel and found.config == run.model
    np.testing.assert_array_equal(loaded["embeddings"]["word_embeddings"]["embedding"], total)

    said = export_checkpoint(tmp_path / "run", tmp_path / "generator", "DebertaV2ForMaskedLM")
    assert "transformers' outputs differ by" in said and "lost: the generator's enhanced mask decoder" in said
    found, _ = huggingface.load(tmp_path / "generator")
    assert type(found) is DebertaForMaskedLM and found.config == run.model.generator

    (tmp_path / "lines").write_text("a b\n")
    embed_file(tmp_path / "run", tmp_path / "lines", tmp_path / "vectors.npz", pooling="cls")
    row = np.array([[2, VOCABULARY.index("a"), VOCABULARY.index("b"), 3]])
    read = jax.jit(DebertaForPreTraining(run.model).apply, static_argnames="method")
    hidden = read({"params": params}, row, method="discriminate").last_hidden_state
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npz")["embeddings"][0], hidden[0, 0], atol=1e-5)

    task = SequenceClassification(labels=("no", "yes"))
    begun = jax.tree.map(jax.device_put, random_params(task.module(run.model, Execution())))
    start = InitFrom.find(tmp_path / "run")
    tuned = dataclasses.replace(run, objective=task)
    initial = start.initialize(
        tuned, start.parameters(tuned), None, in_new_head=in_head, report=lambda line: None
    ).from_sampled(begun)
    np.testing.assert_array_equal(initial["deberta"]["embeddings"]["word_embeddings"]["embedding"], total)


def test_the_generator_fills_masks(tmp_path, tokenizer) -> None:  # noqa: F811
    """With its mask decoder. A run that was tuned on a task has no generator, and says so."""
    run, params = run_of_both(tmp_path / "run", tokenizer)
    size = len(VOCABULARY)
    row = np.array([[2, VOCABULARY.index("a"), VOCABULARY.index("[MASK]"), VOCABULARY.index("b"), 3]])
    read = jax.jit(DebertaForPreTraining(run.model).apply, static_argnames="method")
    logits = read({"params": params}, row, method="generate").logits[0, 2, :size]
    expected = np.asarray(jax.nn.softmax(logits))
    (filled,) = fill_mask(tmp_path / "run", "a [MASK] b", size)
    np.testing.assert_allclose([share for _, share in filled], np.sort(expected)[::-1], rtol=1e-4)
    np.testing.assert_allclose(dict(filled)["c"], expected[VOCABULARY.index("c")], rtol=1e-4)
    task = SequenceClassification(labels=("no", "yes"))
    tuned = dataclasses.replace(run, objective=task)
    head = random_params(task.module(run.model, Execution()))
    checkpoints.save_parameters(tmp_path / "tuned", head, tuned, checkpoints.tokenizer_files(tokenizer))
    with pytest.raises(UserError, match=r"Expected a checkpoint with masked_language_model/.* no masked language"):
        fill_mask(tmp_path / "tuned", "a [MASK]")


def test_a_discriminator_alone_is_trained_on_beside_a_new_generator(tmp_path, tokenizer) -> None:  # noqa: F811
    """Its own outputs are those of before, and the generator begins with its table of words."""
    alone = random_params(DebertaModel(DEBERTA))
    run = Experiment(DEBERTA, DebertaPretraining(), Data(FullSentences()), weight_mapping=BesideGenerator())
    checkpoints.save_parameters(tmp_path / "run", {"deberta": alone}, run, checkpoints.tokenizer_files(tokenizer))
    start, module = InitFrom.find(tmp_path / "run"), DebertaForPreTraining(DEBERTA)
    sampled = jax.tree.map(jax.device_put, random_params(module, seed=1))
    begun = start.initialize(run, start.parameters(run), None, report=lambda line: None).from_sampled(sampled)
    table = alone["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(begun["generator"]["embeddings"]["word_embeddings"]["embedding"], table)
    ids = np.arange(1, 12, dtype=np.int32)[None]
    before = jax.jit(DebertaModel(DEBERTA).apply)({"params": alone}, ids).last_hidden_state
    read = jax.jit(module.apply, static_argnames="method")
    after = read({"params": begun}, ids, method="discriminate").last_hidden_state
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)
    flat = flax.traverse_util.flatten_dict(random_params(module), sep="/")
    assert BesideGenerator().map(flat, DEBERTA, DEBERTA) == flat


TEXTS = [
    "The quick brown fox jumps over the lazy dog.", "In 1984 naïve Zoë paid € 3,50 – “twice”!",
    "  Two  spaces, a tab\tand a line\nend . ", "Größe und Übergänge sind schön, e\u0301tude.",
    "日本語と中文です、漢字。", "สวัสดี ชาวโลก, don't (U.S.) 50%", "a [MASK] of [MASK]s",
]  # fmt: skip


@needs_torch
def test_a_folder_of_a_sentencepiece_model_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    """The mask is added after the pieces.

    Deviation: where the table of the model changes a character, as SentencePiece does; transformers 5 leaves it out.
    """
    import sentencepiece

    model, pieces = io.BytesIO(), {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    ids = {f"{role}_id": number for role, number in pieces.items()}
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[:-1] * 20), model_writer=model, model_type="unigram", vocab_size=150,
        character_coverage=1.0, hard_vocab_limit=False, minloglevel=2, **ids, **names,
    )  # fmt: skip
    (tmp_path / "spm.model").write_bytes(model.getvalue())
    (tmp_path / "config.json").write_text(json.dumps(RELEASED))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))
    ours, theirs = tokenizers.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__.startswith("DebertaV2Tokenizer")
    vocabulary = ours.vocabulary
    assert (vocabulary.pad, vocabulary.cls, vocabulary.sep, vocabulary.unknown) == (0, 1, 2, 3)
    assert vocabulary.mask == vocabulary.size - 1 == theirs.mask_token_id
    template = DebertaConfig.base().template
    for text in TEXTS:
        assert tokenizer_files.row(ours, template, text).tokens == theirs(text)["input_ids"], text
    assert tokenizer_files.difference(ours, template, tmp_path) == ""
    assert ours.encode("ﬁne") == ours.encode("fine") and vocabulary.unknown in theirs("ﬁne")["input_ids"]
