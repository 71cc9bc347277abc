"""Cross-view training: what each module of a task sees, and its dropouts; tests/families has the row of its encoder."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import EXCLUDED
from plmjax.contracts.system import Purpose
from plmjax.models.cvt.cvt import TAGGING_VIEWS, CvtConfig, DropoutOfKind
from plmjax.models.cvt.parsing import PARSING_VIEWS
from plmjax.models.cvt.translation import TRANSLATION_VIEWS
from tests.models.cvt import small as cvt
from tests.products import flops, step_flops
from tests.systems.modules import recorded_draws


def test_each_view_sees_what_it_may():
    """The gradient of what a module says of a word with respect to every other word, of two sentences in a row."""
    given = cvt.inputs([[4, 3]], 7)
    sentence, place = given["segment_ids"][0], np.arange(7)
    same = sentence[:, None] == sentence
    before, after = same & (place <= place[:, None]), same & (place >= place[:, None])
    tagging = {"primary": same, "full": same, "forwards": before, "backwards": after}
    tagging |= {"future": before & (place != place[:, None]), "past": after & (place != place[:, None])}
    one = {"forwards": before, "backwards": after}  # of a word, what one direction sees
    parsing = {f"{head}_{dependent}": (one[head], one[dependent]) for head in one for dependent in one}
    parsing |= {"primary": (same, same), "full": (same, same)}
    assert set(tagging) == {"primary", *TAGGING_VIEWS} and set(parsing) == {"primary", *PARSING_VIEWS}
    own = given | {"input_ids": np.arange(7, dtype=np.int32)[None]}  # a row of the table for every place

    def said(table):
        words = cvt.parameters()["cvt"] | {"words": {"embedding": table}}
        output = cvt.MODULE.apply({"params": cvt.parameters() | {"cvt": words}}, **own)
        trees = {name: scores[0].reshape(7, 8, 2) for name, scores in output["trees"].items()}
        return [
            {name: jnp.sum(scores**2, -1)[0] for name, scores in output["tags"].items()},
            {name: jnp.sum(jnp.where(scores > -1e8, scores, 0.0) ** 2, axis=-1) for name, scores in trees.items()},
            {name: jnp.sum(scores.logits() ** 2, -1)[0] for name, scores in output["texts"].items()},
        ]

    tags, trees, texts = jax.jit(jax.jacrev(said))(cvt.parameters()["cvt"]["words"]["embedding"])
    for name, seen in tagging.items():
        found = np.abs(tags[name][:, :7]).max(axis=-1) > 0
        if name in ("future", "past"):  # what they say of a first or a last word means nothing
            found &= seen.any(axis=1)[:, None]
        np.testing.assert_array_equal(found, seen, err_msg=name)
    assert set(texts) == {"primary", *TRANSLATION_VIEWS}
    for name, gradients in texts.items():
        np.testing.assert_array_equal(np.abs(gradients[:, :7]).max(axis=-1) > 0, same, err_msg=name)
    for name, (of_head, of_dependent) in parsing.items():
        found = np.abs(trees[name][:, :, :7]).max(axis=-1) > 0  # dependent, head, word that it depends on
        np.testing.assert_array_equal(found[:, 0], of_dependent, err_msg=f"{name}, the root")
        pair = (of_head[None] | of_dependent[:, None]) & (same & ~np.eye(7, dtype=bool))[..., None]
        np.testing.assert_array_equal(found[:, 1:], pair, err_msg=name)


def test_packed_sentences_are_read_as_alone():
    """And a sentence's heads are in the sentence."""
    rows, places = cvt.inputs([[3, 2, 4], [], [], []], 11), ((0, 3), (3, 5), (5, 9))
    for row, (begin, end) in enumerate(places, start=1):
        for array in rows.values():
            array[row] = 0
            array[row, : end - begin] = array[0, begin:end]

    @jax.jit
    def primary(rows):
        said = cvt.MODULE.apply({"params": cvt.parameters()}, **rows)
        trees = said["trees"]["primary"].reshape(4, 11, 12, 2)
        return said["tags"]["primary"], trees, said["texts"]["primary"].logits()

    tags, trees, texts = map(np.asarray, primary(rows))
    for row, (begin, end) in enumerate(places, start=1):
        count = end - begin
        np.testing.assert_allclose(tags[row, :count], tags[0, begin:end], atol=2e-6)
        np.testing.assert_allclose(texts[row, :count], texts[0, begin:end], atol=2e-6)
        alone, packed = trees[row, :count], trees[0, begin:end]
        np.testing.assert_allclose(alone[:, 0], packed[:, 0], atol=2e-6)
        np.testing.assert_allclose(alone[:, 1 : count + 1], packed[:, begin + 1 : end + 1], atol=2e-6)
        assert np.all(np.delete(packed, [0, *range(begin + 1, end + 1)], axis=1) == EXCLUDED)


def test_every_dropout_has_the_rate_of_its_place():
    """The encoder has both rates, of which each row takes one; primary modules have that of labelled sentences."""
    labelled, others, attention = 0.5, 0.25, 0.125
    rates = {"dropout": labelled, "unlabelled_dropout": others, "attention_dropout": attention}
    module = cvt.OBJECTIVE.module(dataclasses.replace(cvt.CONFIG, **rates), Execution())
    given, rngs, views = cvt.inputs([[3]], 3), {"dropout": jax.random.key(0)}, len(PARSING_VIEWS)
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.apply({"params": cvt.parameters()}, **given, deterministic=False, rngs=rngs))
    draws = {part: collections.Counter() for part in ("cvt", "tags", "trees", "texts")}
    for draw in found:
        part = draw.path[0] if draw.path[0] == "cvt" else draw.path[1]
        draws[part][draw.rate, draw.shape[-1]] += 1
    encoder = collections.Counter([4, 4, 4, 16, 16])  # words, filters of two widths, both LSTMs
    assert draws["cvt"] == {(rate, size): count for rate in (labelled, others) for size, count in encoder.items()}
    assert draws["tags"] == {} and draws["trees"] == {(labelled, 8): 2, (others, 8): 2 * views}
    assert draws["texts"] == {(labelled, 4): 1, (labelled, 8): 1, (others, 8): 2, (attention, 3): 1}
    states = (jnp.zeros((1, 3, 8)), jnp.zeros((1, 3, 8)), jnp.zeros((1, 3, 16)))
    with recorded_draws() as found:
        asked = {"names": TRANSLATION_VIEWS, "deterministic": False, "rngs": rngs, "method": "view_scores"}
        jax.eval_shape(lambda: module.apply({"params": cvt.parameters()}, "texts", states, given, **asked))
    assert [draw.rate for draw in found if draw.shape[-1] == 4] == [others]  # the words that the views read


def test_dropout_is_that_of_the_kind_of_sentence():
    config, x = CvtConfig(**cvt.SIZES, dropout=0.75, unlabelled_dropout=0.25), jnp.ones((2, 64, 64))
    keys = {"dropout": jax.random.key(0)}
    found = DropoutOfKind(config).apply({}, x, jnp.array([False, True]), False, rngs=keys)
    np.testing.assert_allclose((found == 0).mean(axis=(1, 2)), [0.75, 0.25], atol=0.02)


def test_flops_are_those_of_the_products():
    """The products are those of the encoder, and of the primary modules and all views of three tasks upon it."""
    rows = cvt.inputs([[3, 2], [4, 5]], 9)
    read = step_flops(
        cvt.CONFIG.module(Purpose.ENCODING, Execution()),
        **{name: rows[name] for name in ("input_ids", "characters", "segment_ids")},
    )
    assert cvt.CONFIG.train_flops(2, 9, 0) == read
    # Three translations a row, of three words each, are as many words as the nine of a row.
    shapes = rows | {"example_ids": np.zeros((2, 3), np.int32)}
    tasks = [task.multiplications(cvt.CONFIG, shapes) for task in cvt.OBJECTIVE.tasks]

    def said(params):
        outputs = cvt.MODULE.apply({"params": params}, **rows)
        return outputs, [scores.logits() for scores in outputs["texts"].values()]

    lstm = 18 * 4 * 8 * (4 + 8)  # which all decoders share: where both learn in one program, it runs once
    assert 3 * flops(said, cvt.parameters()) - read == 6 * (sum(primary + views for primary, views, _ in tasks) - lstm)
    assert all(primary == teaching for primary, _, teaching in tasks)
