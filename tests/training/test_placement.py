"""The mesh that is chosen for a model and a slice, and what is said of it; nothing is compiled."""

import dataclasses
import math
import re

import jax
import pytest

from plmjax import experiment as experiments
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Mesh, phases
from plmjax.parallel import topologies
from plmjax.training import placement


def loaded(name: str, **sizes) -> Experiment:
    """An experiment with other settings of its training, or sizes of its model."""
    run = experiments.load(name)
    model = {field: sizes.pop(field) for field in [*sizes] if hasattr(run.model, field)}
    training = dataclasses.replace(run.training, **sizes)
    return dataclasses.replace(run, training=training, model=dataclasses.replace(run.model, **model))


def of(run: Experiment) -> dict:
    """The vocabulary of a run, and the shapes of its batches."""
    shapes = placement.text_batch_shapes(run)
    return {"vocabulary": Vocabulary.placeholder(run.model.vocab_size), "shapes": shapes}


def place(run: Experiment | str, topology: str = "", mesh: Mesh = Mesh(), **training) -> tuple[tuple[int, ...], str]:
    """The sizes of the mesh that is chosen, and why."""
    run = loaded(run, **training) if isinstance(run, str) else run
    devices = topologies.parse(topology).devices() if topology else jax.devices()
    placed = placement.choose_mesh(dataclasses.replace(run, mesh=mesh), devices, **of(run))
    return tuple(placed.mesh.shape.values()), placed.reason


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "topology", "settings", "mesh", "reason"),
    [
        ("bert_base_4x4", "v2:4x4", {}, (32, 1, 1), r"all devices share the batch; needs about 1\.\d of the 8\.0 GiB"),
        ("bert_large_8x8", "v5e:8x8", {}, (64, 1, 1), r"needs about 2\.\d of the 16\.0 GiB"),
        ("bert_large_8x8", "v2:2x2", {"accumulation": 2}, (1, 8, 1), r"data 8 x fsdp 1 x tensor 1 would need about 9"),
        ("bert_large_8x8", "v5e:4x4", {"batch_size": 8}, (8, 1, 2), r"the batch has 8 rows for 16 devices"),
        ("bert_large_8x8", "v2:2x2", {"accumulation": 1}, (1, 8, 1), "no mesh is likely to fit, .* about 13"),
        # 5 to 10 s each to count the residuals of large models
        ("t5_base_8x8:eleven_billion", "v3:8x16", {}, (128, 2, 1), r"256 x fsdp 1 x tensor 1 would need about 22\.\d"),
        ("gpt2_8x8:xl", "v3:8x8", {}, (128, 1, 1), r"needs about 10\.\d of the 16\.0 GiB"),
    ],
)
def test_the_mesh_fits_the_slice_and_says_why(name, topology, settings, mesh, reason):
    found, why = place(name, topology, **settings)
    assert found == mesh and re.search(reason, why), why


def test_a_large_table_of_rows_is_not_left_whole():
    """The 128 cores do not divide its 3 million rows; 64 do, and two its 300 columns."""
    found, why = place("word2vec_google_news", "v3:8x8")
    assert found == (64, 2, 1) and why.startswith(
        "all devices share the batch; data 128 x fsdp 1 x tensor 1 would leave tables of 6.7 GiB whole on every device;"
        " needs about 0.1 of"
    )


@pytest.mark.parametrize(
    ("mesh", "rows", "expected", "reason"),
    [
        (Mesh(fsdp=4), 64, (2, 4, 1), ""),
        (Mesh(data=2, tensor=2), 64, (2, 2, 2), ""),
        (Mesh(data=2, fsdp=2, tensor=2), 64, (2, 2, 2), "as the run sets it"),
        (Mesh(), 64, (8, 1, 1), "all devices share the batch; the memory of a device is not known"),
        (Mesh(), 12, (8, 1, 1), ""),  # the step refuses it
        (Mesh(), 2, (2, 1, 4), "the batch has 2 rows for 8 devices"),  # four heads
    ],
)
def test_what_is_named_is_kept_and_the_rest_is_chosen(mesh, rows, expected, reason):
    found, why = place("bert_tiny", mesh=mesh, batch_size=rows)
    assert found == expected and why.startswith(reason)


def test_the_phase_with_the_fewest_rows_decides():
    parts = (experiments.Phase(0.5, batch_size=16), experiments.Phase(0.5, batch_size=4, accumulation=2))
    found, why = place(dataclasses.replace(loaded("bert_tiny"), phases=parts))
    assert found == (2, 1, 4) and why.startswith("the batch has 2 rows for 8 devices")


ALL_SHARE = "all devices share the batch; "


@pytest.mark.parametrize(
    ("residuals", "table", "mesh", "reason"),
    [
        # The second phase takes 3 GiB for each of 4 rows on a device: 12 of 16.
        ([(1, 2), (3, 6)], 0, (64, 1, 1), f"{ALL_SHARE}needs about 12.0 of the 16.0 GiB of a device"),
        ([(3, 6), (1, 2)], 0, (64, 1, 1), f"{ALL_SHARE}needs about 12.0 of the 16.0 GiB of a device"),
        # 15 GiB that do not depend on the rows are more than nine tenths of 16.
        ([(15, 15), (1, 1)], 0, (32, 2, 1), f"{ALL_SHARE}data 64 x fsdp 1 x tensor 1 would need about 15.0 GiB a "
         "device; needs about 7.5 of the 16.0 GiB of a device"),
        # A table that no mesh divides is left whole, in the first mesh that fits.
        ([(1, 2)] * 2, 2**30, (64, 1, 1), f"{ALL_SHARE}needs about 4.0 of the 16.0 GiB of a device"),
    ],
)  # fmt: skip
def test_the_phase_that_needs_most_memory_decides(residuals, table, mesh, reason, monkeypatch):
    given = [tuple(size * 2**30 for size in one) for one in residuals]
    monkeypatch.setattr(placement, "residuals_of_rows", lambda *_, **how: given)
    monkeypatch.setattr(placement, "state_bytes", lambda *_, **how: placement.StateBytes(0, 0, 0, False, table))
    assert place("bert_large_8x8", "v5e:8x8") == (mesh, reason)


@pytest.mark.parametrize(
    ("sizes", "mesh", "divides"),
    [
        ({}, (1, 2, 4), True),  # four heads
        ({"hidden_size": 132}, (1, 8, 1), False),
        ({"hidden_size": 132}, (2, 4, 1), True),
        ({"intermediate_size": 510}, (2, 1, 4), False),
        ({"num_attention_heads": 2}, (2, 1, 4), False),
        ({"batch_size": 1}, (1, 1, 4), True),
        ({"batch_size": 1}, (1, 1, 8), False),
    ],
)
def test_a_mesh_cuts_rows_and_every_dimension_into_equal_parts(sizes, mesh, divides):
    """One row is for no mesh of data alone, which comes first."""
    run, of_data = loaded("bert_tiny", **sizes), [(math.prod(mesh), 1, 1)] * ("batch_size" in sizes)
    found = placement.even_meshes(run, [*of_data, mesh], *of(run).values())
    assert found == [mesh] * divides


@pytest.mark.parametrize(
    ("accumulation", "rings", "gradients"), [(1, False, 2 * 10), (1, True, 3 * 10), (2, False, 3 * 100)]
)
def test_the_bytes_of_a_device(accumulation, rings, gradients):
    """Each row takes 20 bytes beside the 10 that all rows share, which fsdp and tensor divide among 4 devices."""
    phase = phases.ResolvedPhase(0, 0, 1, sequence_length=16, batch_size=64, accumulation=accumulation)
    state = placement.StateBytes(kept=1000, copy=100, table=10, rings=rings, whole_tables=0)
    found = placement.bytes_needed(phase, (2, 2, 2), state, residuals=(30, 50))
    assert found == 1000 + gradients + 16 // accumulation * 20 + 10 / 4


@pytest.mark.parametrize("mesh", [Mesh(data=1), Mesh(data=3)])
def test_data_that_does_not_go_across_the_slices_is_named(mesh):
    with pytest.raises(UserError, match=r"divides by the 2 slices, found 1|number of devices, found 3"):
        place("bert_large_8x8", "v5e:4x4*2", mesh=mesh)


def test_the_state_of_a_device_is_its_share_and_the_copy_is_cut_by_fsdp_alone():
    """Parameters and two moments in float32, over eight devices; the copy and its largest table over two of them."""
    run = loaded("bert_tiny", vocab_size=4096)
    (phase,) = run.resolved_phases
    found, whole = (
        placement.state_bytes(run, phase, sizes, devices=jax.devices()[: math.prod(sizes)], **of(run))
        for sizes in ((4, 2, 1), (1, 1, 1))
    )
    assert whole.table == 4 * 4096 * 128 == 2 * found.table
    assert whole.kept == pytest.approx(3 * whole.copy, rel=1e-3) and not found.rings
    assert found.copy == pytest.approx(whole.copy / 2, rel=0.02)
    assert found.kept == pytest.approx(whole.kept / 8, rel=0.02)


def test_remat_keeps_less():
    def kept(remat: str) -> int:
        run = loaded("bert_large_8x8", remat=remat)
        return placement.residuals(run, run.resolved_phases[-1], 4, platform="tpu", **of(run))

    assert kept("none") > 1.2 * kept("dots") > 1.4 * kept("full")
