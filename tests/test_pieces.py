"""The pieces of a long benchmark: what they leave, which machine makes them, and what is made again."""

import argparse
import importlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.paths import ROOT


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/pieces.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("pieces")


def made(piece: Any) -> float:
    """Writes a result at once."""
    piece.workdir.mkdir()
    piece.result.write_text(json.dumps({"value": piece.arguments[0]}))
    return 1.0


@pytest.fixture
def stages(pieces: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list, list]:
    """Three pieces, and two that start from each; they are made in this process."""
    monkeypatch.setattr(pieces, "pool", lambda workers: ThreadPoolExecutor(workers))
    monkeypatch.setattr(pieces, "make", made)
    first = [pieces.Piece(tmp_path / str(number), made, (number,)) for number in range(3)]
    second = [pieces.Piece(tmp_path / f"{one.name}-{seed}", made, (seed,), one) for seed in range(2) for one in first]
    return first, second


def test_a_piece_that_has_a_result_is_read(pieces: ModuleType, stages: tuple, capsys) -> None:
    stages[0][1].workdir.mkdir()
    stages[0][1].result.write_text('{"value": "of another day"}')
    assert pieces.work(stages, workers=1) == []
    assert len(capsys.readouterr().out.splitlines()) == 8
    found = pieces.results([*stages[0], *stages[1]])
    assert len(found) == 9 and found["1"] == {"value": "of another day"} and found["2-1"] == {"value": 1}
    assert pieces.work(stages, workers=1) == [] and not capsys.readouterr().out


def test_machines_divide_the_pieces_by_their_numbers(pieces: ModuleType, stages: tuple, capsys) -> None:
    every = [*stages[0], *stages[1]]
    of = [[piece.name for index, piece in enumerate(every) if pieces.Share(k, 4).has(index)] for k in range(1, 5)]
    assert of == [["0", "1-0", "2-1"], ["1", "2-0"], ["2", "0-1"], ["0-0", "1-1"]]
    waiting = [pieces.work(stages, 1, pieces.Share(number, 4)) for number in range(1, 5)]
    assert [[piece.name for piece in one] for one in waiting] == [["1-0", "2-1"], ["2-0"], [], []]
    first = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [name for _, name, *_ in first] == ["0", "1", "2", "0-1", "0-0", "1-1"] and first[-1][0] == "[6/9]"
    assert pieces.work(stages, 1, pieces.Share(1, 4)) == pieces.work(stages, 1, pieces.Share(2, 4)) == []
    assert all(piece.result.exists() for piece in every)


def test_a_share_is_read_from_an_option(pieces: ModuleType) -> None:
    assert pieces.Share.parse("2/8") == pieces.Share(2, 8)
    for text in ("0/8", "9/8", "2", "2/", "-1/2", "1/0"):
        with pytest.raises(argparse.ArgumentTypeError, match="Expected a share such as 2/8"):
            pieces.Share.parse(text)


@pytest.mark.nightly
def test_a_piece_leaves_its_result_and_what_it_took(pieces: ModuleType, tmp_path: Path) -> None:
    piece = pieces.Piece(tmp_path / "piece", lambda workdir: {"value": 3}, ())
    seconds = pieces.make(piece)
    assert json.loads(piece.result.read_text()) == {"value": 3, "seconds": seconds}


def test_every_worker_has_cores_of_its_own(pieces: ModuleType) -> None:
    assert pieces.shares({0, 1, 2, 5}, 2) == [{0, 2}, {1, 5}]
    assert pieces.shares({3, 4}, 3) == [{3}, {4}, {3, 4}]


def test_pieces_left_are_made_in_fresh_processes_now_and_then(
    pieces: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "calls.py").write_text(
        "import os\n\n\ndef process(workdir):\n"
        "    return {'process': os.getpid(), 'cores': list(os.sched_getaffinity(0))}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # where the processes import the call from
    call = importlib.import_module("calls").process
    every = [pieces.Piece(tmp_path / str(number), call, ()) for number in range(5)]
    every[0].workdir.mkdir()
    every[0].result.write_text('{"process": "another day"}')
    monkeypatch.setattr(pieces, "PIECES_A_PROCESS", 2)
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(pieces, "shares", lambda cores, workers: [{core}])
    pieces.work(([], every), workers=1)
    results = [json.loads(piece.result.read_text()) for piece in every]
    assert all(result["cores"] == [core] for result in results[1:])
    processes = [result["process"] for result in results]
    assert processes[0] == "another day"
    assert processes[1] == processes[2] != processes[3] == processes[4]
