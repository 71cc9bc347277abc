"""Properties of DistilBERT: what it leaves out of BERT."""

import dataclasses

import jax
import numpy as np

from plmjax.models.bert import BertConfig, BertForMaskedLM
from plmjax.models.distilbert import DistilBertForMaskedLM
from tests.families.family import padded_untyped_tokens
from tests.families.students import DISTILBERT
from tests.systems.modules import outputs, random_params

INPUTS = padded_untyped_tokens(DISTILBERT)


def test_it_is_a_bert_without_types_if_their_vector_is_zero() -> None:
    """With the same parameters both compute the same; BERT has none besides, without a pooler."""
    student = DistilBertForMaskedLM(DISTILBERT)
    shared = {name: value for name, value in dataclasses.asdict(DISTILBERT).items() if name != "seq_classif_dropout"}
    shared = {name: value for name, value in shared.items() if name != "qa_dropout"}
    teacher = BertForMaskedLM(BertConfig(**shared, type_vocab_size=1))
    params = random_params(student)
    body = params["distilbert"]
    types = {"token_type_embeddings": {"embedding": np.zeros((1, 24), np.float32)}}
    same = {name: value for name, value in params.items() if name != "distilbert"}
    same["bert"] = body | {"embeddings": body["embeddings"] | types}
    assert jax.tree.structure(same) == jax.tree.structure(random_params(teacher))
    found, expected = outputs(student, params, INPUTS), outputs(teacher, same, INPUTS)
    np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-6, atol=1e-6)
