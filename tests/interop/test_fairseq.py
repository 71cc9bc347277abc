"""Checkpoints of fairseq: RoBERTa and BART under the names of all versions, and dict.txt with GPT-2's vocabulary."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.interop import fairseq, huggingface, libraries
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from tests.optional import needs_torch, torch, transformers

TEXT = "The quick brown fox jumps over the lazy dog; naïve Zoë paid 日本"
SIZES = {"vocab_size": 300, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
ENCODER = {
    "embeddings.word_embeddings": "embed_tokens", "embeddings.position_embeddings": "embed_positions",
    "embeddings.LayerNorm": "emb_layer_norm", "encoder.layer": "layers", "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj", "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj", "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1", "output.dense": "fc2", "output.LayerNorm": "final_layer_norm",
}  # fmt: skip
"""Names in transformers -> in fairseq's RoBERTa (examples/roberta, 2019)."""


def state_of(theirs: Any) -> dict[str, Any]:
    """The tensors of a RoBERTa of transformers under fairseq's names of 2019."""
    found = {}
    for name, tensor in theirs.state_dict().items():
        new = name.replace("lm_head.decoder.weight", "lm_head.weight")
        if "token_type" in name or name in ("lm_head.decoder.bias", "roberta.embeddings.position_ids"):
            continue
        if name.startswith("roberta."):
            new = name.removeprefix("roberta.")
            for there, here in ENCODER.items():
                new = re.sub(rf"(^|\.){re.escape(there)}(?=\.)", rf"\g<1>{here}", new)
            new = f"sentence_encoder.{new}"
        found[new if name.startswith("classifier") else f"decoder.{new}"] = tensor.clone()
    return found


def renewed(state: dict[str, Any]) -> dict[str, Any]:
    """The same under the names since 2020, with buffers."""
    new = {re.sub(r"^decoder\.", "encoder.", name): tensor for name, tensor in state.items()}
    new = {name.replace("emb_layer_norm", "layernorm_embedding"): tensor for name, tensor in new.items()}
    return new | {"encoder.sentence_encoder.version": torch.tensor([3.0])}


def joined(state: dict[str, Any]) -> dict[str, Any]:
    """The same with query, key and value in one tensor."""
    new = {name: tensor for name, tensor in state.items() if not re.search(r"\.[qkv]_proj\.", name)}
    for name in state:
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            new[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    return new


def roberta(kind: str = "RobertaForMaskedLM", **settings: Any) -> Any:
    sizes = {"intermediate_size": 37, "max_position_embeddings": 20, "type_vocab_size": 1, "pad_token_id": 1}
    config = transformers.RobertaConfig(**SIZES, **sizes, layer_norm_eps=1e-5, **settings)
    torch.manual_seed(0)
    theirs = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        theirs.roberta.embeddings.token_type_embeddings.weight.zero_()
    return theirs


ARGS = {"arch": "roberta_base", "encoder_attention_heads": 3, "activation_fn": "gelu", "dropout": 0.1}
VERSIONS = {
    "2019": lambda state: {"args": argparse.Namespace(**ARGS), "model": joined(state), "extra_state": {"epoch": 3}},
    "2020": lambda state: {"args": None, "cfg": {"model": argparse.Namespace(**ARGS)}, "model": renewed(state)},
    "wrapped": lambda state: {
        "cfg": {"model": ARGS},
        "model": {f"module.{name}": tensor for name, tensor in renewed(state).items()},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the dictionary of a tokenizer of bytes, and GPT-2's files, in another order than its ids."""
    trained = tokenizers.train("byte-bpe", 290, [TEXT] * 4, tmp_path / "trained")
    own = [token for token in trained.tokens(range(trained.vocabulary.size)) if not token.startswith("<")]
    folder = tmp_path / "roberta.base"
    folder.mkdir()
    (folder / "encoder.json").write_text(json.dumps({token: number for number, token in enumerate(own)}))
    (folder / "vocab.bpe").write_bytes((tmp_path / "trained" / "merges.txt").read_bytes())
    counted = [*range(len(own))][::-1]
    lines = [f"{number} {1000 - place}" for place, number in enumerate(counted)]
    (folder / "dict.txt").write_text("\n".join([*lines, "madeupword0000 0"]) + "\n")
    return folder


def assert_equal(ours: Any, params: Any, theirs: Any) -> None:
    inputs = huggingface.adapter_of(ours).inputs(ours)
    found = huggingface.outputs(ours, params, inputs, ("logits",))["logits"]
    with torch.no_grad():
        expected = theirs(**{name: torch.from_numpy(one).long() for name, one in inputs.items()}).logits
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


@needs_torch
@pytest.mark.parametrize("version", VERSIONS)
def test_a_roberta_of_every_version_computes_as_in_transformers(version: str, folder: Path) -> None:
    theirs = roberta()
    torch.save(VERSIONS[version](state_of(theirs)), folder / "model.pt")
    assert libraries.recognise(folder) == ("fairseq", "dict.txt")
    module, params = fairseq.load(folder)
    assert type(module).__name__ == "RobertaForMaskedLM" and module.config.num_attention_heads == 3
    assert_equal(module, params, theirs)


@needs_torch
def test_a_folder_becomes_a_run_with_the_tokens_of_its_dictionary(folder: Path, tmp_path: Path) -> None:
    theirs = roberta("RobertaForSequenceClassification", num_labels=3)
    state = state_of(theirs)
    state = {re.sub("^classifier", "classification_heads.mnli", name): tensor for name, tensor in state.items()}
    torch.save(VERSIONS["2019"](state), folder / "model.pt")
    said = import_checkpoint(folder, tmp_path / "run")
    assert said.startswith("imported   RobertaForSequenceClassification of ") and "(fairseq, by dict.txt)" in said
    assert export_checkpoint(tmp_path / "run", tmp_path / "out").startswith("exported   RobertaForSequenceClassific")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor([[0, 7, 9, 2]])
    torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "vocab.json").write_bytes((folder / "encoder.json").read_bytes())
    (tmp_path / "gpt2" / "merges.txt").write_bytes((folder / "vocab.bpe").read_bytes())
    numbers = tokenizers.load(tmp_path / "gpt2").encode(TEXT)
    places = [line.split()[0] for line in (folder / "dict.txt").read_text().splitlines()]
    expected = [0, *(4 + places.index(str(number)) for number in numbers), 2]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer(TEXT)["input_ids"] == expected
    assert tokenizer.mask_token_id == 4 + len(places)


@needs_torch
def test_a_bart_computes_as_in_transformers(folder: Path) -> None:
    sides = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in
             {"layers": 2, "attention_heads": 3, "ffn_dim": 37}.items()}  # fmt: skip
    config = transformers.BartConfig(vocab_size=300, d_model=24, max_position_embeddings=20, **sides)
    torch.manual_seed(0)
    theirs = transformers.BartForConditionalGeneration(config).eval()
    state = {name.removeprefix("model."): one.clone() for name, one in theirs.state_dict().items()}
    table = state.pop("shared.weight")
    del state["final_logits_bias"], state["lm_head.weight"]
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")
    state |= dict.fromkeys(copies, table) | {"encoder.version": torch.tensor([3.0])}
    args = argparse.Namespace(arch="bart_large", encoder_attention_heads=3, decoder_attention_heads=3, dropout=0.1)
    torch.save({"args": args, "model": state}, folder / "model.pt")
    module, params = fairseq.load(folder)
    assert type(module).__name__ == "BartForConditionalGeneration" and module.config.max_position_embeddings == 20
    assert_equal(module, params, theirs)


class Attack:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple:
        return Path.write_text, (Path("attacked"), "")


OF = {"args": argparse.Namespace(**ARGS)}
TWO = ("classification_heads.a.dense.bias", "classification_heads.b.dense.bias")
REFUSED = {
    "code": (lambda state: {"args": Attack(), "model": state}, "it holds other objects, or is damaged"),
    "no settings": (lambda state: {"model": state}, r"settings \(args or cfg\) with encoder_attention_heads in"),
    "no model": (lambda state: OF, "the tensors of a model under 'model' in"),
    "two heads": (
        lambda state: OF | {"model": state | dict.fromkeys(TWO, torch.ones(2))},
        "at most one classification head in .*, found a, b",
    ),
    "norms before": (
        lambda state: OF | {"model": renewed(state) | {"encoder.sentence_encoder.layer_norm.bias": torch.ones(24)}},
        r"encoder\.sentence_encoder\.layer_norm\.bias that the model has no parameter for",
    ),
}


@needs_torch
def test_what_is_not_read_is_one_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for change, sentence in REFUSED.values():
        torch.save(change(state_of(roberta())), folder / "model.pt")
        with pytest.raises(UserError, match=sentence):
            fairseq.load(folder)
    assert not (folder / "attacked").exists()
    (folder / "dict.txt").write_text("7 10\n9999999 5\n")
    with pytest.raises(UserError, match=r"in line 2 of .*dict\.txt, found '9999999 5'"):
        fairseq.write_tokenizer(folder, tmp_path)
    (folder / "vocab.bpe").unlink()
    with pytest.raises(UserError, match=r"GPT-2's encoder\.json and vocab\.bpe beside .*dict\.txt"):
        fairseq.write_tokenizer(folder, tmp_path)
