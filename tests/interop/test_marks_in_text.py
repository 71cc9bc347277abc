"""Marks of entities and speakers that somebody added to a BERT are read in every text, as in transformers."""

import itertools
import json
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import store, tokenizers
from plmjax.data.tokenizers.kinds import KINDS
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Finetuning
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging, TokenTagging
from plmjax.inference import fill_mask as filling
from plmjax.inference.embed import embed_file
from plmjax.inference.predict import predict
from plmjax.interop import huggingface
from plmjax.interop.run_directories import _generation, export_checkpoint, import_checkpoint
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig, BertForMaskedLM
from plmjax.runs import task as tasks
from plmjax.runs.resolve import resolve
from plmjax.training.optimizers import BertAdamW
from tests.interop.odd_bert import SIZES, random_params
from tests.interop.test_import_export import VOCABULARY
from tests.optional import needs_torch, torch, transformers

MARKS = ("[E1]", "[/E1]", "<user>", "<Rel>")
ROLES = ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]")
TEXTS = ("[E1]ab[/E1] c", "<user> a [E1] b [/E1]d", "<Rel>e<rel>", "a b [e1] c", "[E1][E1] f[/E1]<USER>")
CONFIG = BertConfig(**SIZES | {"vocab_size": len(VOCABULARY) + len(MARKS)})

pytestmark = needs_torch


def written(folder: Path, whole: bool) -> Path:
    """Return a folder with the files of a tokenizer with marks, as transformers writes them or beside a vocab.txt."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "additional_special_tokens": list(MARKS)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if whole:
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
        (folder / "vocab.txt").unlink(missing_ok=True)
    return folder


@pytest.fixture(
    params=[pytest.param(False, id="vocab.txt", marks=pytest.mark.nightly), pytest.param(True, id="tokenizer.json")]
)
def imported(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that imports a BERT with marks for a purpose. Its folder is `source`."""

    def make(purpose: Purpose, *sizes: int, **told) -> Path:
        module = CONFIG.module(purpose, Execution(), *sizes)
        source = written(tmp_path / "source", request.param)
        huggingface.save(module, random_params(module), source, **told)
        import_checkpoint(source, tmp_path / "run")
        return tmp_path / "run"

    return make


@pytest.mark.nightly  # the rows are those of the vectors
def test_predictions_are_those_of_transformers(imported: Callable[..., Path], tmp_path: Path) -> None:
    labels = {"labels": ("no", "maybe", "yes"), "problem_type": "single_label_classification"}
    run = imported(Purpose.SEQUENCE_CLASSIFICATION, 3, **labels)
    (tmp_path / "new.txt").write_text("\n".join(TEXTS))
    found = [
        [record["probabilities"][name] for name in labels["labels"]]
        for record in predict(run, tmp_path / "new.txt", max_unknown=1)
    ]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "source")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "source").eval()
    with torch.no_grad():
        logits = [model(**theirs(text, return_tensors="pt")).logits[0] for text in TEXTS]
    np.testing.assert_allclose(found, [torch.softmax(one, -1).numpy() for one in logits], atol=1e-5)


def test_vectors_are_those_of_transformers(imported: Callable[..., Path], tmp_path: Path) -> None:
    """Of every token, so of as many tokens. The export gives the same rows."""
    run = imported(Purpose.EMBEDDING)
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS) + "\n")
    embed_file(run, tmp_path / "lines.txt", tmp_path / "out.npz", pooling="none", max_unknown=1)
    export_checkpoint(run, tmp_path / "out")
    for folder in ("source", "out"):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        model = transformers.AutoModel.from_pretrained(tmp_path / folder).eval()
        with torch.no_grad():
            hidden = [model(**theirs(text, return_tensors="pt")).last_hidden_state[0].numpy() for text in TEXTS]
        np.testing.assert_allclose(np.load(tmp_path / "out.npz")["embeddings"], np.concatenate(hidden), atol=1e-5)


def test_examples_have_the_ids_of_transformers(imported: Callable[..., Path], tmp_path: Path) -> None:
    """Those of a fine-tuning on pairs and on words. Names of tokens with a role are plain text."""
    run = imported(Purpose.EMBEDDING)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "source")
    pairs, words = [*itertools.pairwise(TEXTS)], [text.split() for text in TEXTS]
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


def test_names_of_tokens_with_a_role_stay_plain_text(tmp_path: Path) -> None:
    """In fill-mask the gaps alone are read besides the marks."""
    tokenizer = tokenizers.load(written(tmp_path / "source", whole=False))
    first = len(VOCABULARY)
    assert [*tokenizer.names_read.values()] == [*MARKS]
    ids = tokenizer.encode(f"[E1] {' '.join(ROLES)} a{ROLES[0]}b <Rel>")
    placed = {VOCABULARY.index(role) for role in ROLES} - {tokenizer.vocabulary.unknown}
    assert ids[0] == first and ids[-1] == first + 3 and not placed & {*ids}
    masked = filling.masked_ids(tokenizer, "[E1] [MASK] [/E1] [SEP]")
    assert masked[:3] == [first, tokenizer.vocabulary.mask, first + 1] and tokenizer.vocabulary.sep not in masked


def test_a_dataset_has_the_marks_of_its_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, so that a dataset of before is another one; no objective hides them."""
    folder = written(tmp_path / "source", whole=False)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    command = ["prepare", f"--input={tmp_path / 'text.txt'}", f"--tokenizer={folder}", f"--output={tmp_path / 'made'}"]
    cli.run([*command, "--held_out", "0", "--max_unknown", "1"])
    line = "special    9 names of special tokens in the text are read as tokens: [E1] 4, [/E1] 3, <user> 1, ...\n"
    assert line in capsys.readouterr().out
    dataset = store.open_dataset(tmp_path / "made")
    split = dataset.split("train")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert split.tokens(0, split.token_count).tolist() == theirs(" ".join(TEXTS), add_special_tokens=False)["input_ids"]
    assert dataset.manifest["description"]["special_names"] == [*MARKS]
    assert {theirs.convert_tokens_to_ids(mark) for mark in MARKS} <= {*tokenizers.load(folder).vocabulary.special}


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


@needs_torch
@pytest.mark.parametrize(
    "whole", [pytest.param(False, id="vocab.txt", marks=pytest.mark.nightly), pytest.param(True, id="tokenizer.json")]
)
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
