"""What the files of one system alone have: settings of windows and ends, and vocabularies as they were published."""

import json
from pathlib import Path

import chex
import pytest
import transformers

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.data.layouts import FullSentences
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.interop import huggingface, longformer, t5
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.models.albert import AlbertConfig, AlbertForMaskedLM
from plmjax.models.gpt2 import Gpt2Config, Gpt2ForCausalLM, Gpt2Model
from plmjax.models.longformer.longformer import LongformerConfig, LongformerForMaskedLM
from plmjax.models.roberta import RobertaConfig
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.training.checkpoints import checkpoints
from tests.data.test_tokenizers import PROSE, QUOTED, albert_model
from tests.families.long_texts import LONGFORMER
from tests.interop.odd_bert import SIZES, random_params
from tests.optional import needs_torch


def test_windows_of_longformer() -> None:
    """A number or a list. transformers has no limit of global tokens: the default is a quarter of a short row."""
    for windows in ((512,), (512, 256), (64, 64)):
        config = LongformerConfig.base(num_hidden_layers=2, attention_window=windows)
        written = longformer.write_config(LongformerForMaskedLM(config), [])
        assert written["attention_window"] == (512 if len(windows) == 1 else list(windows))
        assert longformer.read_config(json.loads(json.dumps(written))) == config
    written = longformer.write_config(LongformerForMaskedLM(LONGFORMER), [])
    del written["max_global_tokens"]
    assert longformer.read_config(written).max_global_tokens == 16
    assert longformer.read_config(written | {"max_position_embeddings": 4100}).max_global_tokens == 128
    for window in ("512", [512, None], True):
        with pytest.raises(UserError, match="a number or a list of numbers as the config's attention_window"):
            longformer.read_config({"attention_window": window})


@pytest.mark.nightly  # as tests/systems does a list of windows
@needs_torch
def test_one_window_for_all_layers_is_read_by_transformers(tmp_path: Path) -> None:
    module = LongformerForMaskedLM(LongformerConfig.tiny(vocab_size=40, hidden_size=8, intermediate_size=8))
    params = random_params(module)
    huggingface.save(module, params, tmp_path)
    assert huggingface.compare(module, params, tmp_path) <= 1e-5
    assert huggingface.load(tmp_path)[0] == module


def test_the_output_layer_of_a_t5_is_its_own_where_outputs_are_not_scaled() -> None:
    """transformers 5 writes both settings of a T5 1.1: its tables are tied no more, whatever the older one says."""
    class_ = t5.ADAPTER.architectures["T5ForConditionalGeneration"]
    assert class_.of({}).tied and class_.of({"tie_word_embeddings": True, "scale_decoder_outputs": True}).tied
    assert not class_.of({"tie_word_embeddings": False}).tied
    assert not class_.of({"tie_word_embeddings": True, "scale_decoder_outputs": False}).tied


def test_begin_and_end_of_a_roberta_are_those_of_its_tokenizer(tmp_path: Path) -> None:
    """The published ones name padding and [CLS] in a tokenizer of characters."""
    trained = tokenizers.train("char", 60, ["the quick brown fox says: hello, world!"] * 4, tmp_path / "tokenizer")
    sizes = {"vocab_size": 60, "pad_token_id": trained.vocabulary.pad, "max_position_embeddings": 21}
    config = RobertaConfig(**SIZES | sizes)
    module, files = config.module(Purpose.ENCODING, Execution()), checkpoints.tokenizer_files(tmp_path / "tokenizer")
    run = Experiment(config, RobertaPretraining(), Data(FullSentences()))
    checkpoints.save_parameters(tmp_path / "run", {module.name: random_params(module)}, run, files)
    said = export_checkpoint(tmp_path / "run", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (found["bos_token_id"], found["eos_token_id"]) == (2, 3)
    assert "bos_token_id is the tokenizer's" in said
    import_checkpoint(tmp_path / "out", tmp_path / "again")
    export_checkpoint(tmp_path / "again", tmp_path / "same")
    assert (tmp_path / "same" / "config.json").read_bytes() == (tmp_path / "out" / "config.json").read_bytes()


def test_a_vocabulary_alone_is_spelt_as_albert_spells(tmp_path: Path) -> None:
    """Capitals folded and accents dropped, for a spiece.model beside the config and for one that is named apart."""
    model = AlbertForMaskedLM(AlbertConfig(**(SIZES | {"vocab_size": 400}), embedding_size=7))
    huggingface.save(model, random_params(model), tmp_path / "source")
    (tmp_path / "apart").mkdir()
    for folder in ("source", "apart"):
        (tmp_path / folder / "spiece.model").write_bytes(albert_model())
    reference = transformers.AlbertTokenizer.from_pretrained(tmp_path / "source")
    expected = reference(PROSE[:4] + QUOTED, add_special_tokens=False)["input_ids"]
    import_checkpoint(tmp_path / "source", tmp_path / "own")
    import_checkpoint(tmp_path / "source", tmp_path / "other", tokenizer=tmp_path / "apart")
    export_checkpoint(tmp_path / "own", tmp_path / "out")
    for folder in (tmp_path / "own" / "tokenizer", tmp_path / "other" / "tokenizer", tmp_path / "out"):
        assert tokenizers.load(folder).encode_batch(PROSE[:4] + QUOTED) == expected
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again(PROSE[:4] + QUOTED, add_special_tokens=False)["input_ids"] == expected


def test_the_published_tokenizer_of_gpt_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    """vocab.json and merges.txt alone; with the tokens of a task it is saved as files that transformers opens."""
    texts = ("The CAT sat\x00 on the mat, didn't it?", "Ünïcode … dog_ran 中文", "a <unk> b")
    trained = tokenizers.train("bpe", 120, [*texts[:2], "the dog ran over the cat"] * 9, tmp_path / "trained")
    folder = tmp_path / "published"
    folder.mkdir()
    own = [token for token in trained.tokens(range(trained.vocabulary.size)) if not token.startswith("[")]
    (folder / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(["<unk>", *own])}))
    (folder / "merges.txt").write_bytes((tmp_path / "trained" / "merges.txt").read_bytes())
    published = tokenizers.load(folder)
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(folder)
    read = published.with_parsed_special().encode_batch(texts)  # transformers reads <unk> in a text
    assert read == theirs(list(texts))["input_ids"]
    special = published.with_special(("start", "delimiter", "extract"))
    special.save(tmp_path / "special")
    reopened = transformers.AutoTokenizer.from_pretrained(tmp_path / "special")
    assert special.with_parsed_special().encode_batch(texts) == reopened(list(texts))["input_ids"] == read
    names = ["_start_", "_delimiter_", "_classify_"]
    assert reopened.convert_tokens_to_ids(names) == list(special.vocabulary.others.values())
    assert tokenizers.load(tmp_path / "special").fingerprint == special.fingerprint


@needs_torch
def test_a_headless_gpt2_becomes_a_run_and_a_language_model_again(tmp_path: Path) -> None:
    """With its tokenizer."""
    config = Gpt2Config(vocab_size=300, n_positions=19, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0)
    params = random_params(Gpt2ForCausalLM(config))
    huggingface.save(Gpt2ForCausalLM(config), params, tmp_path / "gpt2")
    tokenizers.train("gpt2-bpe", 300, ["one two three, and four times five"] * 9, tmp_path / "gpt2")
    folder = tmp_path / "gpt2"
    huggingface.save(Gpt2Model(config), params["gpt2"], tmp_path / "bare", tokenizer=folder)
    assert "outputs equal those of transformers" in import_checkpoint(tmp_path / "bare", tmp_path / "run")
    chex.assert_trees_all_equal(checkpoints.load_parameters(tmp_path / "run")[0], params)
    export_checkpoint(tmp_path / "run", tmp_path / "out", "GPT2LMHeadModel")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("one and six")["input_ids"] == tokenizers.load(folder).encode("one and six")
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (0, config.n_positions)
