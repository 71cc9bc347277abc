"""Weights of attention of lines, from runs of every kind: the file, its tokens, and what is refused."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.inference import rows
from plmjax.inference.attention import attention
from plmjax.interop.run_directories import export_checkpoint
from plmjax.models.adaptive_span import AdaptiveSpanConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.t5 import T5Config
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.next_token import NextToken
from plmjax.training.checkpoints import checkpoints
from tests.optional import torch, transformers
from tests.systems.modules import random_params

TEXTS = ["the film was good", "", "bad plot", "the actor was great the scene was awful a plot a film", "a"]
OTHERS = ["it was", "a film", "the scene was great", "", "good"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("lines")
    for name, lines in (("texts", TEXTS), ("others", OTHERS)):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "texts.txt", folder / "others.txt"


def are_those_of_transformers(output: Path, run: Path, texts: list[str], folder: Path) -> Any:
    export_checkpoint(run, folder / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "exported")
    model = transformers.AutoModel.from_pretrained(folder / "exported", attn_implementation="eager").eval()
    saved = np.load(output)
    for number, text in enumerate(texts):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            expected = torch.cat(model(input_ids=ids, output_attentions=True).attentions).numpy()
        assert saved[f"tokens_{number}"].tolist() == tokenizer.convert_ids_to_tokens(ids[0])
        np.testing.assert_allclose(saved[f"attentions_{number}"], expected, rtol=1e-5, atol=1e-5)
    return saved


def test_lines_have_the_weights_of_transformers(small_run: Path, files: tuple, tmp_path: Path) -> None:
    """From the command line; alone and in any company."""
    options = ["--input", str(files[0]), "--output", str(tmp_path / "all.npz"), "--batch_size", "2"]
    cli.run(["attention", str(small_run), *options])
    saved = are_those_of_transformers(tmp_path / "all.npz", small_run, TEXTS, tmp_path)
    assert not saved["cut"].any() and len(saved.files) == 2 * len(TEXTS) + 1


def run_of(folder: Path, run: Path, config: Any, **changes: Any) -> Path:
    """A checkpoint of random parameters with the tokenizer of a run."""
    description = checkpoints.describe(checkpoints.find(run))
    experiment = dataclasses.replace(description.experiment, model=config, **changes)
    module = experiment.objective.module(config, Execution())
    checkpoints.save_parameters(folder, random_params(module), experiment, tokenizer=description.tokenizer)
    return folder


def sizes(run: Path) -> dict[str, int]:
    return {"vocab_size": checkpoints.describe(checkpoints.find(run)).experiment.model.vocab_size}


def applied(run: Path, *texts: str, decoder_input_ids: list[int] | None = None) -> Any:
    """The outputs of a run's encoder for one line, without padding."""
    params, description = checkpoints.load_parameters(run)
    config, tokenizer = description.experiment.model, description.load_tokenizer()
    module = config.module(Purpose.ENCODING, Execution())
    given = rows.inputs(config, tokenizer, [texts if len(texts) > 1 else texts[0]])
    if decoder_input_ids is not None:
        given["decoder_input_ids"] = jnp.array([decoder_input_ids])
    apply = jax.jit(functools.partial(module.apply, output_attentions=True))
    return apply({"params": params[module.name]}, **given)


@pytest.mark.nightly
def test_a_language_model_reads_a_line_alone(small_run: Path, tmp_path: Path) -> None:
    """Before fine-tuning, which adds the special tokens of a decoder's rows."""
    config = Gpt2Config(**sizes(small_run), n_embd=12, n_layer=2, n_head=2, n_positions=32)
    run, texts = run_of(tmp_path / "gpt2", small_run, config, objective=NextToken()), [*filter(None, TEXTS)]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    attention(run, tmp_path / "texts.txt", tmp_path / "gpt2.npz")
    are_those_of_transformers(tmp_path / "gpt2.npz", run, texts, tmp_path)


@pytest.mark.parametrize("name", ["bert", pytest.param("xlnet", marks=pytest.mark.nightly)])
def test_pairs_are_rows_of_two_texts(name: str, small_run: Path, files: tuple, tmp_path: Path) -> None:
    """Padded on the left where the template is: XLNet."""
    config = XlnetConfig(**sizes(small_run), d_model=12, n_layer=2, n_head=2, d_inner=9)
    run = small_run if name == "bert" else run_of(tmp_path / "xlnet", small_run, config)
    assert attention(run, files[0], tmp_path / f"{name}.npz", second=files[1], batch_size=3) == len(TEXTS)
    saved = np.load(tmp_path / f"{name}.npz")
    for number, texts in list(enumerate(zip(TEXTS, OTHERS, strict=True)))[2:4]:
        expected = np.asarray(applied(run, *texts).attentions)[:, 0]
        np.testing.assert_allclose(saved[f"attentions_{number}"], expected, rtol=1e-5, atol=1e-6)
        assert len(saved[f"tokens_{number}"]) == expected.shape[-1]


def test_an_encoder_decoder_has_the_weights_of_both_sides(small_run, files: tuple, tmp_path: Path, fails: Any) -> None:
    t5 = T5Config(**sizes(small_run), d_model=12, d_kv=4, d_ff=9, num_layers=1, num_decoder_layers=2, num_heads=2)
    run, output = run_of(tmp_path / "t5", small_run, t5), tmp_path / "t5.npz"
    assert "--second" in fails("attention", run, "--input", files[0], "--output", output)
    attention(run, files[0], output, second=files[1])
    saved = np.load(output)
    tokenizer = checkpoints.describe(checkpoints.find(run)).load_tokenizer()
    for number, (text, other) in list(enumerate(zip(TEXTS, OTHERS, strict=True)))[2:3]:
        found = applied(run, text, decoder_input_ids=[t5.decoder_start_token_id, *tokenizer.encode(other)])
        for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            expected = np.asarray(getattr(found, name))[:, 0]
            np.testing.assert_allclose(saved[f"{name}_{number}"], expected, rtol=1e-5, atol=1e-6)
        queries, keys = saved[f"cross_attentions_{number}"].shape[2:]
        assert (queries, keys) == (len(saved[f"decoder_tokens_{number}"]), len(saved[f"tokens_{number}"]))


@pytest.mark.nightly
def test_keys_before_a_row_are_kept(small_run: Path, files: tuple, tmp_path: Path) -> None:
    """Those of Adaptive-Span's memory before a text."""
    config = AdaptiveSpanConfig(**sizes(small_run), d_model=12, n_layer=2, n_head=2, d_inner=9, attn_span=6, ramp=3)
    (tmp_path / "texts.txt").write_text("\n".join(text for text in TEXTS if text), encoding="utf-8")
    run = run_of(tmp_path / "span", small_run, config, objective=NextToken())
    attention(run, tmp_path / "texts.txt", tmp_path / "span.npz")
    saved = np.load(tmp_path / "span.npz")
    tokens, weights = saved["tokens_0"], saved["attentions_0"]
    assert weights.shape == (2, 2, len(tokens), 6 + len(tokens))
    np.testing.assert_allclose(weights, applied(run, TEXTS[0]).attentions[:, 0], rtol=1e-5, atol=1e-6)
