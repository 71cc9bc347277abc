"""The mesh that is chosen for a model and a slice, and what is said of it; nothing is compiled."""

import dataclasses
import re

import jax
import pytest

from plmjax import experiment as experiments
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Mesh, phases
from plmjax.parallel import topologies
from plmjax.training import placement


def place(name: str, topology: str = "", mesh: Mesh = Mesh(), **training) -> placement.MeshChoice:
    run = experiments.load(name)
    run = dataclasses.replace(run, mesh=mesh, training=dataclasses.replace(run.training, **training))
    devices = topologies.parse(topology).devices() if topology else jax.devices()
    return placement.choose_mesh(
        run, devices, Vocabulary.placeholder(run.model.vocab_size), placement.text_batch_shapes(run)
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "topology", "settings", "mesh", "reason"),
    [
        ("bert_base_4x4", "v2:4x4", {}, (32, 1, 1), r"all devices share the batch; needs about 1\.\d of the 8\.0 GiB"),
        ("bert_large_8x8", "v5e:8x8", {}, (64, 1, 1), r"needs about 2\.\d of the 16\.0 GiB"),
        ("bert_large_8x8", "v5p:4x4x4", {}, (64, 1, 1), r"of the 95\.0 GiB"),
        ("bert_large_8x8", "v2:2x2", {"accumulation": 2}, (1, 8, 1), r"data 8 x fsdp 1 x tensor 1 would need about 9"),
        ("bert_large_8x8", "v5e:4x4", {"batch_size": 8}, (8, 1, 2), r"the batch has 8 rows for 16 devices"),
        (
            "bert_large_8x8",
            "v2:2x2",
            {"accumulation": 1},
            (1, 8, 1),
            r"no mesh is likely to fit, the best needs about 13",
        ),
        # 5 to 10 s each to count the residuals of large models
        ("t5_base_8x8:eleven_billion", "v4:4x8x8", {}, (256, 1, 1), r"needs about 22\.\d of the 32\.0 GiB"),
        (
            "t5_base_8x8:eleven_billion",
            "v3:8x16",
            {},
            (128, 2, 1),
            r"256 x fsdp 1 x tensor 1 would need about 22\.\d",
        ),
        ("t5_base_8x8:three_billion", "v3:8x8", {}, (128, 1, 1), r"needs about 6\.\d of the 16\.0 GiB"),
        ("gpt2_8x8:xl", "v3:8x8", {}, (128, 1, 1), r"needs about 10\.\d of the 16\.0 GiB"),
    ],
)
def test_the_mesh_fits_the_slice_and_says_why(name, topology, settings, mesh, reason):
    placed = place(name, topology, **settings)
    assert tuple(placed.mesh.shape.values()) == mesh
    assert re.search(reason, placed.reason), placed.reason


def test_a_large_table_of_rows_is_not_left_whole():
    """The 128 cores do not divide its 3 million rows; 64 do, and two its 300 columns."""
    placed = place("word2vec_google_news", "v3:8x8")
    assert tuple(placed.mesh.shape.values()) == (64, 2, 1)
    assert re.search(
        r"data 128 x fsdp 1 x tensor 1 would leave tables of 6\.7 GiB whole on every device; needs about 0\.1 of",
        placed.reason,
    )


def test_a_table_that_no_mesh_divides_is_left_whole(monkeypatch):
    """The first mesh that fits is taken then, as it is for a small table."""
    monkeypatch.setattr(placement, "residuals_of_rows", lambda *_, **how: [(1, 2)] * 2)
    for size in (2**30, 2**20):
        monkeypatch.setattr(
            placement, "state_bytes", lambda *_, size=size, **how: placement.StateBytes(0, 0, 0, False, size)
        )
        placed = place("bert_large_8x8", "v5e:8x8")
        assert tuple(placed.mesh.shape.values()) == (64, 1, 1)
        assert placed.reason.startswith("all devices share the batch; needs about")


@pytest.mark.nightly
def test_the_estimate_is_what_the_compiler_takes():
    # GiB of a device, as `plmjax plan` finds it.
    for name, topology, gib in (
        ("base_4x4", "v2:4x4", 1.69),
        ("large_8x8", "v3:8x8", 1.69),
        ("large_8x8", "v5e:8x8", 2.70),
    ):
        run = experiments.load(f"experiments/bert_{name}.py")
        devices, shapes = topologies.parse(topology).devices(), placement.text_batch_shapes(run)
        vocabulary, last = Vocabulary.placeholder(run.model.vocab_size), run.resolved_phases[-1]
        sizes = (len(devices), 1, 1)
        (residuals,) = placement.residuals_of_rows(run, [last], "tpu", vocabulary=vocabulary, shapes=shapes)
        state = placement.state_bytes(run, last, sizes, devices=devices, vocabulary=vocabulary, shapes=shapes)
        found = placement.bytes_needed(last, sizes, state, residuals)
        assert found / 2**30 == pytest.approx(gib, rel=0.06)


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
    placed = place("bert_tiny", mesh=mesh, batch_size=rows)
    assert tuple(placed.mesh.shape.values()) == expected and placed.reason.startswith(reason)


@pytest.mark.parametrize(("devices", "divide"), [(4, True), (8, False)])
def test_a_mesh_that_cuts_is_asked_for_the_heads_after_one_that_does_not(devices: int, divide: bool) -> None:
    run = experiments.load("experiments/bert_tiny.py")  # four heads
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, batch_size=1))
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    cuts = (1, 1, devices)
    found = placement.even_meshes(run, [(devices, 1, 1), cuts], vocabulary, placement.text_batch_shapes(run))
    assert found == [cuts] * divide


def test_the_phase_with_the_fewest_rows_decides():
    run = experiments.load("experiments/bert_tiny.py")
    parts = (experiments.Phase(0.5, batch_size=16), experiments.Phase(0.5, batch_size=4, accumulation=2))
    run = dataclasses.replace(run, phases=parts)
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    placed = placement.choose_mesh(run, jax.devices(), vocabulary, placement.text_batch_shapes(run))
    assert placed.reason.startswith("the batch has 2 rows for 8 devices")
    assert tuple(placed.mesh.shape.values()) == (2, 1, 4)


@pytest.mark.parametrize(
    ("residuals", "mesh", "reason"),
    [
        # The second phase takes 3 GiB for each of 4 rows on a device: 12 of 16.
        ([(1, 2), (3, 6)], (64, 1, 1), "all devices share the batch; needs about 12.0 of the 16.0 GiB of a device"),
        ([(3, 6), (1, 2)], (64, 1, 1), "all devices share the batch; needs about 12.0 of the 16.0 GiB of a device"),
        # 15 GiB that do not depend on the rows are more than nine tenths of 16.
        (
            [(15, 15), (1, 1)],
            (32, 2, 1),
            "all devices share the batch; data 64 x fsdp 1 x tensor 1 would need about 15.0 GiB a device; needs about "
            "7.5 of the 16.0 GiB of a device",
        ),
    ],
)
def test_the_phase_that_needs_most_memory_decides(residuals, mesh, reason, monkeypatch):
    given = [tuple(size * 2**30 for size in one) for one in residuals]
    monkeypatch.setattr(placement, "residuals_of_rows", lambda *_, **how: given)
    monkeypatch.setattr(placement, "state_bytes", lambda *_, **how: placement.StateBytes(0, 0, 0, False, 0))
    placed = place("bert_large_8x8", "v5e:8x8")
    assert (tuple(placed.mesh.shape.values()), placed.reason) == (mesh, reason)


@pytest.mark.parametrize(
    ("sizes", "mesh", "divides"),
    [
        ({}, (1, 2, 4), True),
        ({"hidden_size": 132}, (1, 8, 1), False),
        ({"hidden_size": 132}, (2, 4, 1), True),
        ({"intermediate_size": 510}, (2, 1, 4), False),
        ({"num_attention_heads": 2}, (2, 1, 4), False),
        ({"num_attention_heads": 2}, (2, 2, 2), True),
    ],
)
def test_a_mesh_cuts_every_dimension_into_equal_parts(sizes, mesh, divides):
    run = experiments.load("experiments/bert_tiny.py")
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, **sizes))
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    found = placement.even_meshes(run, [mesh], vocabulary, placement.text_batch_shapes(run))
    assert found == ([mesh] if divides else [])


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
    run = experiments.load("experiments/bert_tiny.py")
    (phase,), vocabulary, shapes = run.resolved_phases, Vocabulary.placeholder(4096), placement.text_batch_shapes(run)
    found = placement.state_bytes(run, phase, (4, 2, 1), devices=jax.devices(), vocabulary=vocabulary, shapes=shapes)
    whole = placement.state_bytes(
        run, phase, (1, 1, 1), devices=jax.devices()[:1], vocabulary=vocabulary, shapes=shapes
    )
    assert whole.table == 4 * 4096 * 128 == 2 * found.table
    assert whole.kept == pytest.approx(3 * whole.copy, rel=1e-3) and not found.rings
    assert found.copy == pytest.approx(whole.copy / 2, rel=0.02)
    assert found.kept == pytest.approx(whole.kept / 8, rel=0.02)


def test_remat_keeps_less():
    run = experiments.load("experiments/bert_large_8x8.py")
    last, vocabulary = run.resolved_phases[-1], Vocabulary.placeholder(run.model.vocab_size)

    def kept(remat: str) -> int:
        changed = dataclasses.replace(run, training=dataclasses.replace(run.training, remat=remat))
        return placement.residuals(
            changed, last, 4, platform="tpu", vocabulary=vocabulary, shapes=placement.text_batch_shapes(changed)
        )

    assert kept("none") > 1.2 * kept("dots") > 1.4 * kept("full")
