"""Tokens that the files beside a vocabulary add survive an import, an export and another import."""

import json
from pathlib import Path

import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.interop.run_directories import _generation, export_checkpoint, import_checkpoint
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig, BertForMaskedLM
from tests.interop.odd_bert import SIZES, random_params
from tests.interop.test_import_export import VOCABULARY
from tests.optional import needs_torch

TEXTS = ["a <ent>b <Rel> c", "<rel>a [PAD2] b[PAD2]", "abc <ENT> [MASK]d"]


@needs_torch
@pytest.mark.parametrize("whole", [False, True], ids=["vocab.txt", "tokenizer.json"])
def test_added_tokens_survive_import_export_and_import(whole: bool, tmp_path: Path) -> None:
    import transformers

    source, size = tmp_path / "source", len(VOCABULARY)
    source.mkdir()
    (source / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (source / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    if whole:
        tokenizers.load(source).save(source)
    model = BertForMaskedLM(BertConfig(**SIZES | {"vocab_size": size + 3}))
    huggingface.save(model, random_params(model), source)
    (source / "added_tokens.json").write_text(json.dumps({"<ent>": size, "<Rel>": size + 1, "[PAD2]": size + 2}))
    (source / "special_tokens_map.json").write_text('{"pad_token": "[PAD2]", "additional_special_tokens": ["<ent>"]}')
    expected = transformers.AutoTokenizer.from_pretrained(source)
    rows = expected(TEXTS)["input_ids"]
    assert [size in row for row in rows] == [True, False, True] and size + 2 in rows[1]
    said = import_checkpoint(source, tmp_path / "run")
    assert "its tokenizer gives the ids of transformers" in said
    export_checkpoint(tmp_path / "run", tmp_path / "out")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert there(TEXTS)["input_ids"] == rows and there.pad_token_id == expected.pad_token_id == size + 2
    assert there.get_added_vocab() == expected.get_added_vocab()
    assert "its tokenizer gives the ids of transformers" in import_checkpoint(tmp_path / "out", tmp_path / "again")
    first, again = (tokenizers.load(tmp_path / run / "tokenizer") for run in ("run", "again"))
    assert (first.fingerprint, first.special) == (again.fingerprint, again.special)
    assert first.vocabulary.pad == size + 2


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"max_length": "x"}, "Expected int as max_length"),
        ({"forced_eos_token_id": 99}, "Expected ids of tokens below"),
    ],
    ids=str,
)
def test_a_wrong_setting_of_generation_names_its_file(
    wrong: dict[str, object], message: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text(json.dumps(wrong))
    module = BartConfig.tiny(vocab_size=9).module(Purpose.CAUSAL_LM, Execution())
    with pytest.raises(UserError, match=rf"{message}.* \(in {tmp_path}/{name}\)\."):
        _generation(tmp_path, module, Vocabulary(9, end=4))
