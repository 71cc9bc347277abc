"""Units: about equal parts of the input, in the order of reading, of a bounded number."""

from plmjax.data import formats
from plmjax.data.preparation import units as module
from plmjax.data.preparation.units import units


def test_small_files_share_a_unit_and_large_ones_are_cut(tmp_path):
    for name, lines in (("a", 10), ("b", 10), ("c", 300), ("d", 1)):
        (tmp_path / f"{name}.txt").write_text("A line of text.\n\n" * lines)
    source = formats.Input((str(tmp_path),))
    found = units(source, 321 * 17, 1000)
    assert [unit.index for unit in found] == list(range(len(found)))
    ranges = [part for unit in found for part in unit.ranges]
    assert ranges == source.ranges(1000)
    # A unit ends with the range that makes it large enough.
    assert all(unit.bytes >= 1000 and unit.bytes - unit.ranges[-1].bytes < 1000 for unit in found[:-1])
    assert len(found[0].ranges) == 3 and len(found) == 6


def test_a_unit_is_full_at_exactly_its_size(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_bytes(b"A line of text.\n" * 10)
    for size, sizes in ((160, [160, 160, 160]), (161, [320, 160])):
        assert [unit.bytes for unit in units(formats.Input((str(tmp_path),)), 480, size)] == sizes


def test_the_number_of_units_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 4)
    (tmp_path / "a.txt").write_text("A line of text.\n\n" * 500)
    assert len(units(formats.Input((str(tmp_path),)), 8500, 100)) == 4


def test_examples_of_tfds_are_cut(tmp_path):
    """Ranges without a number of bytes are a unit each."""

    class Source(formats.Input):
        def ranges(self, size):
            return [formats.Range("train", begin, begin + 10) for begin in range(0, 30, 10)]

    assert [unit.ranges[0].begin for unit in units(Source(()), 0)] == [0, 10, 20]
