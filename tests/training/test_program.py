"""The program of a phase: the options with which its step is compiled, for a run and for a plan."""

import jax
import pytest

from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Data, Experiment, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.plan import compilation
from plmjax.training import phases, placement
from plmjax.training import program as programs
from plmjax.training.optimizers import BertAdamW
from plmjax.vocabulary import Vocabulary


@pytest.mark.parametrize("planned", [False, True])
def test_a_run_and_its_plan_compile_the_step_with_the_options_of_the_device(planned, monkeypatch):
    asked = []

    def refused(device: jax.Device) -> dict[str, str]:
        asked.append(device.device_kind)
        return {"xla_option_that_is_not_there": "1"}

    monkeypatch.setattr(topologies, "compiler_options", refused)
    run = Experiment(
        model=BertConfig.tiny(vocab_size=128),
        objective=BertPretraining(),
        data=Data(layout=SentencePairs(), sequence_length=16),
        optimizer=BertAdamW(),
        training=Training(steps=2, batch_size=4),
    )
    devices = topologies.parse("v5e:1x1").devices() if planned else jax.devices()[:1]
    mesh, (phase,) = meshes.make(run.mesh, devices), phases.resolve(run)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_option_that_is_not_there"):
        if planned:
            compilation.compile_phase(run, phase, mesh)
        else:
            program = programs.build(run, phase, mesh, Vocabulary.placeholder(128), placement.of_layout(run))
            program.train.lower(program.state, program.batch).compile()
    assert asked == [devices[0].device_kind]
