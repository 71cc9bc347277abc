"""The tokenizer of an exported folder lays texts out as the model reads them, whatever system it was trained for."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import pytest

from plmjax.contracts.template import TEXT_ALONE, Template
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.interop import huggingface, tokenizer_files
from plmjax.models.bert import BertConfig, BertForPreTraining
from plmjax.models.families.decoder import DecoderForCausalLM
from plmjax.models.gpt import GptConfig, GptModel
from plmjax.models.gpt2 import Gpt2Model
from plmjax.models.modernbert.decoder import ModernBertDecoderForCausalLM
from plmjax.models.roberta import RobertaConfig, RobertaForMaskedLM
from tests.families import IN_TRANSFORMERS
from tests.optional import transformers

TEXTS = ["The fox is quick.", " Two  dogs,\nand (3.5) naïve cats!", "日本 e-mail"]
PAIR = ("A lazy dog?", "No: a fox.")
KINDS = {"wordpiece": 120, "byte-bpe": 300, "t5-unigram": 150}
"""Kind -> tokens; each has the special tokens of another system."""
CASES = [
    pytest.param(module, id=f"{name}-{type(module).__name__}", marks=pytest.mark.nightly if number else ())
    for name, family in IN_TRANSFORMERS.items()
    for number, module in enumerate({type(module): module for module in reversed(family.checkpoints)}.values())
]
"""A module of each class; by day one of each system, since their rows are those of the system."""
Trained = Callable[[str], tokenizers.Tokenizer]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Kind -> a tokenizer that has the special tokens of a GPT that was fine-tuned besides its own."""
    folder, text = tmp_path_factory.mktemp("tokenizers"), " ".join([*TEXTS, *PAIR] * 3)
    made = {kind: tokenizers.train(kind, size, [text], folder / kind) for kind, size in KINDS.items()}
    return lambda kind: made[kind].with_special(["start", "delimiter", "extract"])


def written(module: nn.Module, tokenizer: Any, folder: Path) -> Any:
    """The tokenizer as transformers opens it beside the model's config.json."""
    adapter = huggingface.adapter_of(module)
    tokenizer_files.write(tokenizer, adapter.rows(module), module.config.longest, folder)
    (folder / "config.json").write_text(json.dumps(adapter.write_config(module, ())))
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_a_text_is_cut_at_the_longest_row_of_the_model(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "bounded").mkdir()
    for longest, folder in ((12, tmp_path / "bounded"), (None, tmp_path)):
        tokenizer_files.write(trained("wordpiece"), Template("cls A sep", "cls A sep B sep"), longest, folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert len(theirs(" ".join(["fox"] * 40), truncation=True)["input_ids"]) == (longest or 42)


@pytest.mark.parametrize("module", CASES)
def test_transformers_gives_a_text_and_a_pair_our_rows(module: nn.Module, trained: Trained, tmp_path: Path) -> None:
    """Ids, token types where the model has several, and the names of what it is given."""
    alone = isinstance(module, DecoderForCausalLM | GptModel | Gpt2Model | ModernBertDecoderForCausalLM)
    template = Template("A", "A B") if alone else module.config.template
    for kind in KINDS:
        tokenizer = trained(kind)
        if template.missing(tokenizer.vocabulary):
            assert kind == "t5-unigram"  # which has no token that begins a text
            continue
        theirs = written(module, tokenizer, tmp_path / kind)
        for texts in [*((text,) for text in TEXTS), PAIR]:
            row, found = template.lay_out(tokenizer.encode_batch(texts), tokenizer.vocabulary), theirs(*texts)
            types = {"token_type_ids": row.token_types} if template.typed else {}
            assert dict(found) == {"input_ids": row.tokens, **types, "attention_mask": [1] * len(row.tokens)}, kind
            assert theirs.decode(row.tokens, skip_special_tokens=True) == tokenizer.decode(row.tokens)


def test_a_roberta_with_types_has_them_in_transformers_too(trained: Trained, tmp_path: Path) -> None:
    """Its own class there marks the second text of a pair like the first."""
    config = RobertaConfig.tiny(vocab_size=300, type_vocab_size=2)
    found = written(RobertaForMaskedLM(config), trained("byte-bpe"), tmp_path)("a", "b")
    assert found["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    one = RobertaForMaskedLM(RobertaConfig.tiny(vocab_size=300))
    assert "token_type_ids" not in written(one, trained("byte-bpe"), tmp_path / "one")("a", "b")


def test_a_mask_takes_the_space_before_it_in_transformers_too(trained: Trained, tmp_path: Path) -> None:
    tokenizer = trained("byte-bpe")
    theirs = written(RobertaForMaskedLM(RobertaConfig.tiny(vocab_size=300)), tokenizer, tmp_path)
    text = "The <mask> fox"
    assert theirs(text)["input_ids"][1:-1] == tokenizer.with_parsed_special().encode(text)
    assert theirs.mask_token_id == tokenizer.vocabulary.mask in tokenizer.with_parsed_special().encode(text)


def test_settings_that_transformers_lays_texts_out_by_again_are_left_out(trained: Trained, tmp_path: Path) -> None:
    """As published decoders have them."""
    trained("wordpiece").save(tmp_path / "source")
    file = tmp_path / "source" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"add_bos_token": False, "model_max_length": 7}))
    tokenizer = tokenizers.load(tmp_path / "source")
    theirs = written(BertForPreTraining(BertConfig.tiny(vocab_size=200)), tokenizer, tmp_path / "out")
    ids = [tokenizer.vocabulary.cls, *tokenizer.encode("a fox"), tokenizer.vocabulary.sep]
    assert theirs("a fox")["input_ids"] == ids and theirs.model_max_length == 7


@pytest.mark.parametrize("installed", [True, False], ids=["transformers", "tokenizers"])
def test_another_layout_is_found(
    installed: bool, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the library tokenizers alone too."""
    if not installed:
        monkeypatch.setitem(sys.modules, "transformers", None)
    tokenizer, rows = trained("wordpiece"), Template("A end", "A end B end")
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    tokenizer_files.write(tokenizer, rows, 19, tmp_path)
    assert tokenizer_files.compare(tokenizer, rows, tmp_path) == 8
    types = Template("A end", "A end B:1 end:1")
    tokenizer_files.write(tokenizer, types, 19, tmp_path)
    assert tokenizer_files.compare(tokenizer, rows, tmp_path) == 8  # a model without types is given none
    with pytest.raises(UserError, match=r"ids of a text that differ \(.* for .* from token 1 on"):
        tokenizer_files.compare(tokenizer, Template("cls A end", "A end B end"), tmp_path)
    with pytest.raises(UserError, match="ids of a pair that differ"):
        tokenizer_files.compare(tokenizer, Template("A end", "A B end"), tmp_path)
    with pytest.raises(UserError, match="token types of a pair that differ"):
        tokenizer_files.compare(tokenizer, Template("A end", "A end:1 B:1 end:1"), tmp_path)


def test_texts_stand_alone_without_the_special_tokens_of_a_head(caplog: pytest.LogCaptureFixture) -> None:
    assert tokenizer_files.rows_with(Vocabulary(9, end=1), GptConfig().template) == TEXT_ALONE
    assert "no token for start, delimiter, extract" in caplog.text


def engine_with(change: Callable[[dict[str, Any]], Any], folder: Path) -> None:
    """Change the tokenizer.json of a folder."""
    file = folder / "tokenizer.json"
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))


def added(content: str, **flags: bool) -> Callable[[dict[str, Any]], Any]:
    names = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False) | flags
    return lambda found: found["added_tokens"].append({"id": 123, "content": content, **names})


OTHERS = {
    "vocabulary": (
        lambda found: found["model"]["vocab"].update({"¿": found["model"]["vocab"].pop("?")}),
        r"vocabulary that differs \(id \d+ for no id of the token '¿'\)",
    ),
    "one more token": (added("<ent>"), r"vocabulary that differs \(id \d+ for no id of the token '<ent>'\)"),
    "token found": (
        lambda found: found["added_tokens"].append(found["added_tokens"][0] | {"id": 60, "content": "fox"}),
        "added token that differs .* is split here",
    ),
    "token not found": (
        lambda found: found["added_tokens"].pop(4),
        r"added token that differs \('\[MASK\]' is split there\)",
    ),
    "flag": (
        lambda found: found["added_tokens"][4].update(lstrip=True, special=False, normalized=True),
        r"added token that differs \(lstrip, normalized, special of '\[MASK\]'\)",
    ),
}


@pytest.mark.parametrize("installed", [True, False], ids=["transformers", "tokenizers"])
@pytest.mark.parametrize("other", OTHERS)
def test_other_tokens_are_found(
    other: str, installed: bool, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In texts without them the ids are the same."""
    if not installed:
        monkeypatch.setitem(sys.modules, "transformers", None)
    tokenizer, rows = trained("wordpiece"), Template("cls A sep", "cls A sep B:1 sep:1")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    tokenizer_files.write(tokenizer, rows, 19, tmp_path)
    assert tokenizer_files.difference(tokenizer, rows, tmp_path) == ""
    change, message = OTHERS[other]
    engine_with(change, tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(file.read_text().replace("mask_token", "a_token_of_ours").replace('"[MASK]"', "null"))
    assert re.search(message, tokenizer_files.difference(tokenizer, rows, tmp_path))
    with pytest.raises(UserError, match=message):
        tokenizer_files.compare(tokenizer, rows, tmp_path)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"pad_token": "[MASK]"}, "special tokens that differ ('[MASK]' for '[PAD]' as pad_token)"),
        ({"split_special_tokens": True}, ""),  # a choice of the caller for the texts of a call
    ],
)
def test_another_role_is_found(options, difference: str, trained: Trained, tmp_path: Path) -> None:
    tokenizer, rows = trained("wordpiece"), Template("cls A sep", "cls A sep B:1 sep:1")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    tokenizer_files.write(tokenizer, rows, 19, tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | options))
    assert tokenizer_files.difference(tokenizer, rows, tmp_path) == difference


def test_a_tokenizer_that_cannot_encode_a_text_is_named(trained: Trained, tmp_path: Path) -> None:
    tokenizer_files.write(trained("wordpiece"), TEXT_ALONE, 19, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    engine_with(lambda found: found["model"].update(unk_token="<none>"), tmp_path)
    with pytest.raises(UserError, match=f"Expected transformers to open the tokenizer in {tmp_path}, found: .*UNK"):
        tokenizer_files.compare(trained("wordpiece"), TEXT_ALONE, tmp_path)


@pytest.mark.parametrize(
    "options", [{"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}], ids=str
)
def test_another_spelling_is_found_in_words_of_the_vocabulary(options: dict[str, Any], tmp_path: Path) -> None:
    """Of a vocabulary that knows no word of other texts."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "qq", "ww"]))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    rows = Template("cls A sep", "cls A sep B:1 sep:1")
    tokenizer = tokenizers.load(tmp_path)
    assert tokenizer_files.difference(tokenizer, rows, tmp_path) == ""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    assert re.search(r"ids of a text that differ .* of '(QQ|qq)", tokenizer_files.difference(tokenizer, rows, tmp_path))
