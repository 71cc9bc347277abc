"""What evaluate, embed and fill-mask answer, on a model that has hardly learned."""

import math

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.inference import embed, evaluate, fill_mask
from plmjax.training import checkpoints
from plmjax.training.metrics import read

TEXTS = ["the film was good", "a", "", "bad plot", "the actor was great the scene was awful a plot a film", "poor"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def reference(small_run, tmp_path_factory):
    """text -> hidden states [L+1 T D] of transformers' BertModel, one text at a time and unpadded."""
    import torch
    import transformers

    from plmjax.interop.checkpoints import export_checkpoint

    folder = tmp_path_factory.mktemp("export")
    export_checkpoint(small_run, folder, "BertForPreTraining")
    model = transformers.BertForPreTraining.from_pretrained(folder).eval()
    tokenizer = tokenizers.load(folder)

    def states(text: str):
        ids = [tokenizer.vocabulary.cls, *tokenizer.encode(text), tokenizer.vocabulary.sep]
        with torch.no_grad():
            outputs = model(torch.tensor([ids]), output_hidden_states=True)
        return torch.stack(outputs.hidden_states)[:, 0].numpy(), outputs.prediction_logits[0].numpy()

    return states


@pytest.mark.parametrize(("layer", "pooling"), [(-1, "mean"), (0, "cls"), (-1, "none")])
def test_embeds_every_line_as_transformers_does(small_run, texts, reference, tmp_path, layer, pooling):
    output = tmp_path / "out.npz"
    assert embed(small_run, texts, output, layer=layer, pooling=pooling, batch_size=4) == len(TEXTS)
    saved = np.load(output)
    for row, text in enumerate(TEXTS):
        expected = reference(text)[0][layer]
        if pooling == "none":
            found = saved["embeddings"][saved["offsets"][row] : saved["offsets"][row + 1]]
        else:
            found = saved["embeddings"][row]
            expected = expected[0] if pooling == "cls" else expected.mean(axis=0)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert saved["lengths"][row] == len(reference(text)[0][0]) and not saved["cut"][row]


def test_a_line_has_the_same_vector_in_any_company(small_run, texts, tmp_path):
    embed(small_run, texts, tmp_path / "all.npz", batch_size=4)
    together = np.load(tmp_path / "all.npz")["embeddings"]
    for row, text in enumerate(TEXTS):
        (tmp_path / "one.txt").write_text(text + "\n", encoding="utf-8")
        embed(small_run, tmp_path / "one.txt", tmp_path / "one.npz", batch_size=4)
        np.testing.assert_array_equal(np.load(tmp_path / "one.npz")["embeddings"][0], together[row])


def test_a_line_longer_than_the_positions_is_cut_and_says_so(small_run, tmp_path):
    (tmp_path / "long.txt").write_text("film " * 200, encoding="utf-8")
    embed(small_run, tmp_path / "long.txt", tmp_path / "long.npz")
    saved = np.load(tmp_path / "long.npz")
    assert saved["cut"].tolist() == [True] and saved["lengths"].tolist() == [128]


def test_fills_every_mask_with_the_likeliest_tokens(small_run, reference):
    text = "the [MASK] was [MASK]"
    _, logits = reference(text)
    filled = fill_mask(small_run, text, 3)
    tokenizer = tokenizers.load(small_run / "tokenizer")
    assert len(filled) == 2
    for place, candidates in zip((2, 4), filled, strict=True):
        probabilities = np.exp(logits[place]) / np.exp(logits[place]).sum()
        best = np.argsort(-probabilities)[:3]
        assert [token for token, _ in candidates] == tokenizer.tokens(best)
        np.testing.assert_allclose([share for _, share in candidates], probabilities[best], atol=1e-6)


def test_evaluates_as_the_run_itself_did(small_run):
    """The run looked at two batches only of what is evaluated here."""
    metrics = evaluate(small_run)
    assert metrics["eval/perplexity"] == pytest.approx(math.exp(metrics["eval/loss"]))
    last = [line for line in read(small_run / "metrics.jsonl") if "eval/loss" in line][-1]
    assert metrics.keys() == {name for name in last if name.startswith("eval/")} | {"eval/perplexity"}
    assert metrics["eval/loss"] == pytest.approx(last["eval/loss"], abs=0.3)


def test_evaluates_raw_text(small_run, prose, tmp_path):
    documents = prose.read_text(encoding="utf-8").split("\n\n")
    (tmp_path / "text.txt").write_text("\n\n".join(documents[:10]), encoding="utf-8")
    metrics = evaluate(small_run, tmp_path / "text.txt")
    assert 3 < metrics["eval/unigram_entropy"] < metrics["eval/loss"] < math.log(800)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run, path: fill_mask(run, "no mask"), r"Expected a text with one or more \[MASK\]"),
        (lambda run, path: fill_mask(run, "[MASK] " + "film " * 200), "at most 126 tokens"),
        (lambda run, path: fill_mask(run, "[MASK]", 0), "Expected --top from 1"),
        (lambda run, path: fill_mask(path, "[MASK]"), "no finished checkpoint"),
        (lambda run, path: embed(run, path / "none.txt", path / "o.npz"), "found no file"),
        (lambda run, path: embed(run, path / "binary", path / "o.npz"), "Expected UTF-8 text"),
        (lambda run, path: embed(run, path / "empty", path / "o.npz"), "empty"),
        (lambda run, path: embed(run, path / "binary", path / "o.txt"), "Expected an .npz file"),
        (lambda run, path: embed(run, path / "text", path / "o.npz", layer=3), "--layer from 0 to 1"),
        (lambda run, path: embed(run, path / "text", path / "o.npz", pooling="max"), "Unknown --pooling 'max'"),
    ],
)
def test_a_mistake_is_one_sentence(small_run, tmp_path, call, message):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("a film\n")
    with pytest.raises(UserError, match=message) as error:
        call(small_run, tmp_path)
    assert "\n" not in str(error.value)


def test_parameters_come_as_numpy_arrays(small_run):
    params, _ = checkpoints.load_parameters(small_run)
    assert isinstance(params["bert"]["pooler"]["kernel"], np.ndarray)
