"""ELECTRA's two networks, which transformers keeps apart, in and out of one checkpoint."""

import dataclasses

import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.data.layouts import SingleSegment
from plmjax.experiment import Data, Experiment
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.interop import huggingface
from plmjax.interop.run_directories import can_export, export_checkpoint, import_checkpoint
from plmjax.models.electra import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForReplacedTokenDetection,
    ElectraModel,
)
from plmjax.objectives.electra import ElectraPretraining
from plmjax.runs.finetuning import in_head
from plmjax.runs.init_from import InitFrom
from plmjax.training.checkpoints import checkpoints
from tests.interop.odd_bert import SIZES, assert_same_bits, random_params
from tests.interop.test_import_export import VOCABULARY, tokenizer  # noqa: F401  a fixture
from tests.optional import needs_torch, transformers

SIZES = SIZES | {"embedding_size": 7, "generator_hidden_size": 12, "generator_num_attention_heads": 3}
CONFIG = ElectraConfig(**SIZES)
NETWORKS = {
    "ElectraModel": (ElectraModel, "AutoModel"),
    "ElectraForPreTraining": (ElectraForReplacedTokenDetection, "AutoModelForPreTraining"),
    "ElectraForMaskedLM": (ElectraForMaskedLM, "AutoModelForMaskedLM"),
}


# With the tanh form too, which the head of transformers' generator does not have, nor ours; 2 s each.
@needs_torch
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name == "ElectraForMaskedLM" else pytest.mark.nightly) for name in NETWORKS],
)
def test_either_network_is_written_from_a_checkpoint_of_both(tmp_path, architecture):
    model = ElectraForPreTraining(ElectraConfig(**SIZES, hidden_act="gelu_new"))
    params, (module, auto) = random_params(model), NETWORKS[architecture]
    huggingface.save(model, params, tmp_path, architecture=architecture)
    assert huggingface.compare(model, params, tmp_path, architecture) <= 1e-5
    assert type(getattr(transformers, auto).from_pretrained(tmp_path)).__name__ == architecture

    again, loaded = huggingface.load(tmp_path)
    assert type(again) is module
    assert again.config == (model.config.generator if module is ElectraForMaskedLM else model.config)
    leaves = flax.traverse_util.flatten_dict(params["electra"] if module is ElectraModel else params)
    for path, leaf in flax.traverse_util.flatten_dict(loaded).items():
        np.testing.assert_array_equal(leaf, leaves[path])
    huggingface.save(again, loaded, tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_run_is_exported_as_either_network_and_its_discriminator_begins_a_task(tmp_path, tokenizer):  # noqa: F811
    run = Experiment(model=CONFIG, objective=ElectraPretraining(), data=Data(SingleSegment()))
    params = random_params(ElectraForPreTraining(CONFIG))
    checkpoints.save_parameters(tmp_path / "run", params, run, tokenizer=checkpoints.tokenizer_files(tokenizer))
    assert can_export(tmp_path / "run")
    assert "ElectraForPreTraining of step 0" in export_checkpoint(tmp_path / "run", tmp_path / "discriminator")
    said = export_checkpoint(tmp_path / "run", tmp_path / "generator", "ElectraForMaskedLM")
    assert "ElectraForMaskedLM of step 0" in said
    assert huggingface.read_settings(tmp_path / "generator")["hidden_size"] == 12

    import_checkpoint(tmp_path / "discriminator", tmp_path / "imported")
    found, description = checkpoints.load_parameters(tmp_path / "imported")
    task = SequenceClassification(labels=("no", "yes"))
    begun = jax.tree.map(jax.device_put, random_params(task.module(run.model, Execution())))
    start = InitFrom.find(tmp_path / "imported")
    tuned = dataclasses.replace(description.experiment, objective=task)
    initial = start.initialize(tuned, start.parameters(tuned), None, in_new_head=in_head, report=lambda line: None)
    assert_same_bits(initial.from_sampled(begun)["electra"], found["electra"])
