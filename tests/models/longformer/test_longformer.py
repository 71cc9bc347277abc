"""Properties of Longformer alone: which tokens are global, how far windows reach, and mistakes."""

import dataclasses
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.interop.longformer import ADAPTER
from plmjax.models.longformer.longformer import (
    LongformerForMultipleChoice,
    LongformerForQuestionAnswering,
    LongformerForSequenceClassification,
    LongformerModel,
)
from tests.families.long_texts import LONGFORMER
from tests.optional import needs_torch, torch
from tests.systems.comparison import architecture_name, converted, reference
from tests.systems.modules import outputs, random_params

RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(4, LONGFORMER.vocab_size, (2, 24), np.int32)
IDS[0, [4, 5, 20]] = IDS[1, [2, 3, 12]] = LONGFORMER.sep_token_id
UNDIVIDED = np.stack([IDS[0], np.where(IDS[1] == LONGFORMER.sep_token_id, 4, IDS[1])])[None, :, :20]
MASK = (np.arange(24) < np.array([[21], [13]])).astype(np.int32)


@needs_torch
@pytest.mark.parametrize(
    "module",
    [
        pytest.param(LongformerForSequenceClassification(LONGFORMER, num_labels=5), marks=pytest.mark.nightly),
        LongformerForQuestionAnswering(LONGFORMER),
        pytest.param(
            LongformerForMultipleChoice(dataclasses.replace(LONGFORMER, max_global_tokens=16)),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=lambda module: type(module).__name__,
)
def test_global_tokens_of_a_task_are_those_of_transformers(module: nn.Module) -> None:
    """<s> of a text, the question of an answer, the question and the choice of multiple choice: by default."""
    labels = {"num_labels": module.num_labels} if hasattr(module, "num_labels") else {}
    name = architecture_name(ADAPTER, module)
    model = reference(name, module.config, **labels)
    params = converted(ADAPTER, model.named_parameters(), module)
    batch = {"input_ids": IDS, "attention_mask": MASK}
    if name.endswith("MultipleChoice"):
        # transformers reads the separators of all questions at once: two of one choice, not one of two.
        batch = {name: field[:, None] for name, field in batch.items()}
    expected = model(**{name: torch.tensor(field).long() for name, field in batch.items()})
    found = outputs(module, params, batch)
    for ours, theirs in ADAPTER.architectures[name].outputs.items():
        mask = MASK if ours.endswith(("start_logits", "end_logits")) else np.ones_like(found.logits)
        wanted = expected[theirs].detach().numpy() * mask
        np.testing.assert_allclose(getattr(found, ours) * mask, wanted, rtol=1e-5, atol=1e-5)
    none = outputs(module, params, batch | {"global_attention_mask": np.zeros_like(batch["input_ids"])})
    first = next(iter(ADAPTER.architectures[name].outputs))
    assert np.abs(getattr(none, first) - getattr(found, first)).max() > 1e-3


@pytest.mark.parametrize(
    ("head", "most", "ids", "tokens"),
    [
        (LongformerForQuestionAnswering, 3, IDS[:1], np.arange(24)[None] < 3),
        (LongformerForMultipleChoice, 16, UNDIVIDED, (np.arange(20) > np.array([[5], [20]]))[None]),
    ],
    ids=["a long question", "a choice without a separator"],
)
def test_tokens_that_are_global(head: type, most: int, ids: np.ndarray, tokens: np.ndarray) -> None:
    """All tokens of a question, up to the maximum; of a choice, the tokens after its second separator."""
    module = head(dataclasses.replace(LONGFORMER, max_global_tokens=most))
    params = random_params(module)
    given = {"input_ids": ids}, {"input_ids": ids, "global_attention_mask": tokens}
    found, expected = (jax.tree.leaves(outputs(module, params, each)) for each in given)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.nightly
@pytest.mark.parametrize("windows", [(4,), (2, 4, 8)])
def test_windows_reach_as_far_as_their_sum(windows: tuple[int, ...]) -> None:
    """And no further; a global token sees all and is seen by all."""
    config = dataclasses.replace(LONGFORMER, attention_window=windows)
    module, length = LongformerModel(config), 30
    params, ids = random_params(module), jnp.arange(4, 34)[None]
    words = params["embeddings"]["word_embeddings"]

    def reached(mask: np.ndarray) -> np.ndarray:
        def of_words(table: jax.Array) -> jax.Array:
            embeddings = params["embeddings"] | {"word_embeddings": words | {"embedding": table}}
            inputs = {"input_ids": ids, "global_attention_mask": mask}
            return module.apply({"params": params | {"embeddings": embeddings}}, **inputs).last_hidden_state[0].sum(-1)

        return np.abs(jax.jit(jax.jacrev(of_words))(words["embedding"])[:, ids[0]]).max(-1) > 0

    distance = np.abs(np.arange(length)[:, None] - np.arange(length))
    near = distance <= sum(config.layer_windows) // 2
    np.testing.assert_array_equal(reached(np.zeros((1, length), int)), near)
    assert not near.all() and reached((np.arange(length) == 17)[None]).all()


def test_too_many_global_tokens_are_refused() -> None:
    """By a sentence where their number is known, by NaN in that row in a compiled program."""
    module = LongformerModel(LONGFORMER)
    params, batch = random_params(module), {"input_ids": IDS, "global_attention_mask": (np.arange(24) < [[6], [5]])}
    with pytest.raises(UserError, match="at most 5 global tokens in a row, found 6; choose fewer"):
        module.apply({"params": params}, **batch)
    found = outputs(module, params, batch).last_hidden_state
    assert np.isnan(found[0]).all() and np.isfinite(found[1]).all()


def test_global_tokens_with_dilated_windows_are_refused(tmp_path: Path) -> None:
    """And so are their export and their import, as transformers has no dilation."""
    config = dataclasses.replace(LONGFORMER, attention_dilation=(1, 2, 2))
    module, labels = LongformerModel(config), LongformerForSequenceClassification(config, num_labels=2)
    params, head = random_params(module), random_params(LongformerForSequenceClassification(LONGFORMER, num_labels=2))
    assert np.isfinite(outputs(module, params, {"input_ids": IDS}).last_hidden_state).all()
    with pytest.raises(UserError, match=r"attention_dilation 1 with global tokens, found 1 2 2; change it, or"):
        labels.apply({"params": head}, IDS)
    with pytest.raises(UserError, match=r"windows without dilation, as .* has them, found dilations of 1 2 2; "):
        huggingface.save(module, params, tmp_path / "dilated")
    assert ADAPTER.read_config({"attention_window": 8, "attention_dilation": [1, 1]}).attention_dilation == (1,)
    with pytest.raises(UserError, match=r"an attention_dilation of 1 in the config, .* found \[1, 2\]"):
        ADAPTER.read_config({"attention_dilation": [1, 2]})
