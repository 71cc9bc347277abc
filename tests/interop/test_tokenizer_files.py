"""Tokenizers of folders: rows as the model reads them, marks that somebody added, and files that ask for too much."""

import itertools
import json
import re
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import Template
from plmjax.data import tokenizers
from plmjax.data.tokenizers.kinds import KINDS
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Finetuning
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.interop import huggingface, tokenizer_files
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.models.bert import BertConfig, BertForMaskedLM
from plmjax.models.families.decoder import DecoderForCausalLM
from plmjax.models.gpt import GptModel
from plmjax.models.gpt2 import Gpt2Model
from plmjax.models.modernbert.decoder import ModernBertDecoderForCausalLM
from plmjax.models.roberta import RobertaConfig, RobertaForMaskedLM
from plmjax.runs import task as tasks
from plmjax.runs.resolve import resolve
from plmjax.training.optimizers import BertAdamW
from tests.families import IN_TRANSFORMERS
from tests.interop.odd_bert import SIZES, random_params
from tests.interop.test_import_export import VOCABULARY
from tests.optional import transformers

TEXTS = ["The fox is quick.", " Two  dogs,\nand (3.5) naïve cats!", "日本 e-mail"]
PAIR = ("A lazy dog?", "No: a fox.")
PAIRS = Template("cls A sep", "cls A sep B:1 sep:1")
TRAINED = {"wordpiece": 120, "byte-bpe": 300, "t5-unigram": 150}
"""Kind -> tokens; each has the special tokens of another system."""
CASES = [pytest.param(family.checkpoints[-1], id=name) for name, family in IN_TRANSFORMERS.items()]
"""A module of each system, whose rows all its classes have."""
Trained = Callable[[str], tokenizers.Tokenizer]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Kind -> a tokenizer that has the special tokens of a GPT that was fine-tuned besides its own."""
    folder, text = tmp_path_factory.mktemp("tokenizers"), " ".join([*TEXTS, *PAIR] * 3)
    made = {kind: tokenizers.train(kind, size, [text], folder / kind) for kind, size in TRAINED.items()}
    return lambda kind: made[kind].with_special(["start", "delimiter", "extract"])


def written(module: nn.Module, tokenizer: Any, folder: Path) -> Any:
    """The tokenizer as transformers opens it beside the model's config.json."""
    adapter = huggingface.adapter_of(module)
    tokenizer_files.write(tokenizer, adapter.rows(module), module.config.longest, folder)
    (folder / "config.json").write_text(json.dumps(adapter.write_config(module, ())))
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("module", CASES)
def test_transformers_gives_a_text_and_a_pair_our_rows(module: nn.Module, trained: Trained, tmp_path: Path) -> None:
    """Ids, token types where the model has several, and the names of what it is given."""
    alone = isinstance(module, DecoderForCausalLM | GptModel | Gpt2Model | ModernBertDecoderForCausalLM)
    template = Template("A", "A B") if alone else module.config.template
    for kind in TRAINED:
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
    """Its own class there marks the second text of a pair like the first. A mask takes the space before it."""
    config, tokenizer = RobertaConfig.tiny(vocab_size=300, type_vocab_size=2), trained("byte-bpe")
    theirs = written(RobertaForMaskedLM(config), tokenizer, tmp_path)
    assert theirs("a", "b")["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    ids = tokenizer.with_parsed_special().encode("The <mask> fox")
    assert theirs("The <mask> fox")["input_ids"][1:-1] == ids and tokenizer.vocabulary.mask in ids


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


@pytest.fixture
def bert(trained: Trained, tmp_path: Path) -> tokenizers.Tokenizer:
    """A tokenizer whose files are in the folder of the test."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    tokenizer_files.write(trained("wordpiece"), PAIRS, 19, tmp_path)
    assert tokenizer_files.difference(trained("wordpiece"), PAIRS, tmp_path) == ""
    return trained("wordpiece")


def changed(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))


OTHERS = {
    "vocabulary": (
        lambda found: found["model"]["vocab"].update({"¿": found["model"]["vocab"].pop("?")}),
        r"vocabulary that differs \(id \d+ for no id of the token '¿'\)",
    ),
    "token found": (
        lambda found: found["added_tokens"].append(found["added_tokens"][0] | {"id": 60, "content": "fox"}),
        "added token that differs .* is split here",
    ),
    "token not found": (
        lambda found: found["added_tokens"].pop(4), r"added token that differs \('\[MASK\]' is split there\)"
    ),
    "flag": (
        lambda found: found["added_tokens"][4].update(lstrip=True, special=False, normalized=True),
        r"added token that differs \(lstrip, normalized, special of '\[MASK\]'\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_other_tokens_are_found(other: str, bert: tokenizers.Tokenizer, tmp_path: Path) -> None:
    """In texts without them the ids are the same."""
    change, message = OTHERS[other]
    changed(tmp_path / "tokenizer.json", change)
    changed(tmp_path / "tokenizer_config.json", lambda found: found.pop("mask_token"))
    assert re.search(message, tokenizer_files.difference(bert, PAIRS, tmp_path))


def test_another_role_is_found_and_a_text_that_cannot_be_encoded(bert: tokenizers.Tokenizer, tmp_path: Path) -> None:
    changed(tmp_path / "tokenizer_config.json", lambda found: found.update(pad_token="[MASK]"))
    difference = "special tokens that differ ('[MASK]' for '[PAD]' as pad_token)"
    assert tokenizer_files.difference(bert, PAIRS, tmp_path) == difference
    changed(tmp_path / "tokenizer.json", lambda found: found["model"].update(unk_token="<none>"))
    with pytest.raises(UserError, match=f"Expected transformers to open the tokenizer in {tmp_path}, found: .*UNK"):
        tokenizer_files.compare(bert, PAIRS, tmp_path)


def test_another_spelling_is_found_in_words_of_the_vocabulary(tmp_path: Path) -> None:
    """The vocabulary has no word of the texts that are compared otherwise."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "qq", "ww"]))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    tokenizer = tokenizers.load(tmp_path)
    assert tokenizer_files.difference(tokenizer, PAIRS, tmp_path) == ""
    for options in ({"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
        said = tokenizer_files.difference(tokenizer, PAIRS, tmp_path)
        assert re.search(r"ids of a text that differ .* of '(QQ|qq)", said)


def test_a_file_that_asks_for_too_much_is_one_sentence(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "vocab.json"):
        tokenizers.train("byte-bpe", 300, ["some text to learn from"], folder := tmp_path / name.partition(".")[0])
        changed(folder / name, lambda found: found.get("model", {"vocab": found})["vocab"].update(a=4_000_000_000))
        with pytest.raises(UserError, match=rf"Expected ids from 0 on, .* in .*{name}, found 4000000000 for '"):
            tokenizers.load(folder / name if name == "vocab.json" else folder)
    text = ["a text of several words to learn pieces from, and another one of other words"] * 3
    tokenizers.train("t5-unigram", 160, text, tmp_path / "t5")
    (tmp_path / "t5" / "tokenizer.json").unlink()
    changed(tmp_path / "t5" / "tokenizer_config.json", lambda found: found.update(extra_ids=10**9))
    with pytest.raises(UserError, match=r"Expected extra_ids from 0 to 16,384, found 1000000000; correct it \(in"):
        tokenizers.load(tmp_path / "t5")
    tokenizers.train("word", 30, ["some text to learn from"], tmp_path / "word")
    split = {"type": "Split", "pattern": {"Regex": "(?:(?:a|aa)+)+b"}, "behavior": "Isolated", "invert": False}
    changed(tmp_path / "word" / "tokenizer.json", lambda found: found.update(pre_tokenizer=split))
    with pytest.raises(UserError, match="found that it cannot encode one of"):
        tokenizers.load(tmp_path / "word").encode("a" * 60)


MARKS = ("[E1]", "[/E1]", "<user>", "<Rel>")
MARKED = ("[E1]ab[/E1] c", "<user> a [E1] b [/E1]d", "<Rel>e<rel>", "a b [e1] c", "[E1][E1] f[/E1]<USER>")
CONFIG = BertConfig(**SIZES | {"vocab_size": len(VOCABULARY) + len(MARKS)})


def marked(folder: Path) -> Path:
    """Return a folder with the files of a tokenizer with marks, beside a vocab.txt."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "additional_special_tokens": list(MARKS)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_examples_have_the_ids_of_transformers(tmp_path: Path) -> None:
    """Those of a fine-tuning on pairs and on words. Names of tokens with a role are plain text."""
    module, source, run = CONFIG.module(Purpose.EMBEDDING, Execution()), marked(tmp_path / "source"), tmp_path / "run"
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(source)
    (source / "vocab.txt").unlink(missing_ok=True)
    huggingface.save(module, random_params(module), source)
    import_checkpoint(source, run)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "source")
    pairs, words = [*itertools.pairwise(MARKED)], [text.split() for text in MARKED]
    rows = [{"text": one, "second": two, "label": "ab"[len(one) % 2]} for one, two in pairs]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ("".join(f"{word}\t{len(word) > 2}\n" for word in sentence) for sentence in words)
    (tmp_path / "tags.conll").write_text("\n".join(lines))
    for task, objective, file, expected in (
        (Sentences, SequenceClassification(), "pairs.jsonl", [theirs(*pair)["input_ids"] for pair in pairs]),
        (Tagging, TokenTagging(), "tags.conll", theirs(words, is_split_into_words=True)["input_ids"]),
    ):
        named = {"text_pair": "second"} if task is Sentences else {}
        data = task(*[str(tmp_path / file)] * 2, sequence_length=19, pack=1, **named)
        whole = Experiment(model=None, objective=objective, data=data, optimizer=BertAdamW(), finetuning=Finetuning())
        encoded = tasks.inputs(resolve(whole, run)).source.validation_rows.encoded
        assert np.split(encoded.tokens, encoded.offsets[1:-1])[0].tolist() == expected[0]
        assert encoded.tokens.tolist() == [token for row in expected for token in row]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "byte"])  # which transformers cannot read
def test_marks_of_every_kind_are_read_as_in_transformers(kind: str, tmp_path: Path) -> None:
    """Also one that takes the space before it."""
    tokenizers.train(kind, 400, [f"The quick fox. {string.printable}"] * 9, tmp_path / "trained")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "trained")
    marks = ["[E1]", "<user>", transformers.AddedToken("<|im|>", lstrip=True, special=True)]
    theirs.add_special_tokens({"additional_special_tokens": marks}, replace_extra_special_tokens=False)
    theirs.save_pretrained(tmp_path / "more")
    tokenizer = tokenizers.load(tmp_path / "more")
    texts = ["[E1]fox[E1] quick <user> The <|im|>x", "a [E1] [e1] <user>.<|im|>", "<user>", "<User> [E1"]
    assert tokenizer.encode_batch(texts) == [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert [ids.tolist() for ids, _ in tokenizer.encode_spans(texts)] == tokenizer.encode_batch(texts)
    assert [*tokenizer.names_read.values()] == ["[E1]", "<user>", "<|im|>"]


ADDED = ["a <ent>b <Rel> c", "<rel>a [PAD2] b[PAD2]", "abc <ENT> [MASK]d"]


def test_added_tokens_survive_import_export_and_import(tmp_path: Path) -> None:
    source, size = tmp_path / "source", len(VOCABULARY)
    source.mkdir()
    (source / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (source / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    tokenizers.load(source).save(source)
    model = BertForMaskedLM(BertConfig(**SIZES | {"vocab_size": size + 3}))
    huggingface.save(model, random_params(model), source)
    (source / "added_tokens.json").write_text(json.dumps({"<ent>": size, "<Rel>": size + 1, "[PAD2]": size + 2}))
    (source / "special_tokens_map.json").write_text('{"pad_token": "[PAD2]", "additional_special_tokens": ["<ent>"]}')
    expected = transformers.AutoTokenizer.from_pretrained(source)
    rows = expected(ADDED)["input_ids"]
    assert [size in row for row in rows] == [True, False, True] and size + 2 in rows[1]
    said = import_checkpoint(source, tmp_path / "run")
    assert "its tokenizer gives the ids of transformers" in said
    export_checkpoint(tmp_path / "run", tmp_path / "out")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert there(ADDED)["input_ids"] == rows and there.pad_token_id == expected.pad_token_id == size + 2
    assert there.get_added_vocab() == expected.get_added_vocab()
    assert "its tokenizer gives the ids of transformers" in import_checkpoint(tmp_path / "out", tmp_path / "again")
    first, again = (tokenizers.load(tmp_path / run / "tokenizer") for run in ("run", "again"))
    assert (first.fingerprint, first.special) == (again.fingerprint, again.special)
    assert first.vocabulary.pad == size + 2
