"""Units on processes: what is shown of their progress, and the input that each stage reads."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from plmjax.data.preparation import prepare, run
from plmjax.data.preparation.pool import Pool
from plmjax.data.preparation.progress import Bar
from plmjax.data.preparation.units import Unit
from tests.data.random_texts import CLEAN, document


def test_bytes_are_counted_of_units_that_other_processes_have_read() -> None:
    class Known(Unit):
        bytes = property(lambda self: 10 + self.index)

    units = [Known(index, ()) for index in range(12)]
    for on_cluster, processes, in_this_process in ((True, 40, False), (False, 12, False), (False, 13, True)):
        for reads in (True, False):
            pool, counts, calls = Pool.__new__(Pool), [], []
            pool._on_cluster, pool._processes, pool._conversion = on_cluster, processes, "conversion"
            pool._workers = SimpleNamespace(results=lambda method, tasks: [method("worker", *task) for task in tasks])

            def method(conversion: str, unit: Unit, word: str, calls: list = calls, **more: object) -> None:
                calls.append((conversion, unit.index, word))

            done = pool.run(method, units, ("word",), SimpleNamespace(advance=counts.append), reads)
            assert [unit.index for unit in done] == list(range(12))
            where = "conversion" if in_this_process else "worker"
            assert calls == [(where, index, "word") for index in range(12)]
            assert sum(counts) == (12 * 10 + 66 if reads and not in_this_process else 0)


@pytest.mark.parametrize("clean", [(), CLEAN])
def test_the_first_stage_alone_reads_the_input(clean, tokenizer, tmp_path: Path, monkeypatch) -> None:
    """Whatever the number of stages, at the end as many bytes are shown as there are."""
    (tmp_path / "text.txt").write_text("\n\n".join(document(seed) for seed in range(40)))
    reads, bars, original = [], [], Pool.run

    def recorded(self, method, units, arguments, progress, reads: bool, stages: list = reads):
        stages.append((method.__name__, reads))
        return original(self, method, units, arguments, progress, reads)

    monkeypatch.setattr(Pool, "run", recorded)
    monkeypatch.setattr(run, "Bar", lambda *arguments: bars.append(Bar(*arguments)) or bars[-1])
    prepare([tmp_path / "text.txt"], "text", tokenizer, tmp_path / "out", clean=clean, processes=1, progress=False)
    screens = [name for name, _ in reads[:-1]]
    assert reads[-1][0] == "write" and set(screens) <= {"screen"} and (len(screens) > 1) == bool(clean)
    assert [read for _, read in reads] == [True, *[False] * len(screens)]
    assert bars[0]._done == bars[0]._total == (tmp_path / "text.txt").stat().st_size


def test_a_log_has_a_line_every_ten_seconds(monkeypatch, capsys) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: False))
    with Bar(50_000_000, True) as bar, Bar(0, False) as silent:
        for seconds in (4, 5.9, 0.1, 9.9, 0.2):
            now[0] += seconds
            bar.add_tokens(1000)
            bar.advance(1_000_000)
            silent.advance(1)
    assert capsys.readouterr().out.splitlines() == [
        "prepare    2.0 of 50.0 MB  3,000 tokens  300 tokens/s",
        "prepare    4.0 of 50.0 MB  5,000 tokens  249 tokens/s",
    ]
