"""Every setting of a run reaches the part of the loop that it is for; no step is compiled."""

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plmjax.errors import UserError
from plmjax.experiment import Hosts, Phase
from plmjax.objectives.capabilities import AdaptsModel
from plmjax.parallel import hosts
from plmjax.parallel.stopping import Interrupted
from plmjax.training import checks, constants, evaluation, loop, phases, placement
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.training.checkpoints.start import InitialParameters
from plmjax.training.pace import Window
from tests.strangers import experiments
from tests.strangers.source import ChainSource


class Called(Exception):
    """Ends a run where another part would do its work."""


def end(*given: Any, **named: Any) -> None:
    raise Called(*given, *named.values())


def run_of(**groups: dict[str, Any]) -> Any:
    """A run of twelve steps in two phases."""
    run = experiments.changed(experiments.gpt2(), **{"training": {"steps": 12, "seed": 7}} | groups)
    return dataclasses.replace(run, phases=(Phase(0.5), Phase(0.5, sequence_length=8)))


class Parts:
    """Parts of a run that write down what they are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, latest: int | None = None) -> None:
        self.given: dict[str, Any] = {}
        self.saved: list[Any] = []
        self.description = Description(
            run_of(), latest or 0, {}, "chain", {"eval/loss": 2.0}, {"loss": (6.0, 2)}, (1, 3)
        )
        self.latest = latest
        monkeypatch.setattr(loop, "devices", lambda platform: f"devices of {platform}")
        monkeypatch.setattr(placement, "place", self.place)
        monkeypatch.setattr(loop, "build", self.build)
        monkeypatch.setattr(loop, "unigram_nats", lambda counts, size: ("nats", size))
        monkeypatch.setattr(constants, "of_run", lambda *given: given)
        monkeypatch.setattr(checks, "evaluation_settings", lambda run, names: self.given.update(names=names))
        monkeypatch.setattr(loop, "Checkpoints", self.checkpoints)
        monkeypatch.setattr(loop, "Votes", lambda mesh: f"votes of {mesh}")
        monkeypatch.setattr(loop, "_Session", self.session)
        monkeypatch.setattr(hosts, "watched", end)

    def place(self, *given: Any) -> SimpleNamespace:
        self.given["place"] = given
        return SimpleNamespace(mesh="the mesh")

    def build(self, run: Any, phase: Any, *given: Any) -> SimpleNamespace:
        self.given["build"] = given
        return SimpleNamespace(phase=phase, state=f"state of phase {phase.index}", initialize=self.initialize)

    def initialize(self, *given: Any) -> Any:
        self.given["initialize"] = given
        return SimpleNamespace(params="drawn", replace=lambda params: params)

    def checkpoints(self, *given: Any) -> SimpleNamespace:
        self.given["checkpoints"] = given
        return SimpleNamespace(latest=lambda: self.latest, save_constants=self.saved.append, restore=self.restore)

    def restore(self, step: int, state: Any) -> tuple[Any, Description]:
        self.given["restore"] = (step, state)
        return state, self.description

    def session(self, **given: Any) -> SimpleNamespace:
        self.given["session"] = given
        return SimpleNamespace()


def test_a_new_run_begins_as_its_settings_and_its_origin_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, files = Parts(monkeypatch), {"vocab.txt": b"a"}
    run = run_of(
        training={"steps": 12, "seed": 7, "platform": "cpu"},
        checkpoint={"every": 5},
        hosts={"silent_seconds": 20.0, "stall_minutes": 3.0},
    )
    source, initial = ChainSource(run.data), InitialParameters(lambda params: f"of {params}", lambda name: name == "w")
    judge = SimpleNamespace(names=lambda program: [f"names of {program.state}"])
    with pytest.raises(Called) as called:
        loop.train(run, tmp_path, source, files, initial, judge)
    assert called.value.args == (Hosts(20.0, 3.0),)
    given = parts.given
    assert given["place"] == (run, "devices of cpu", source.vocabulary, source.batch)
    assert given["build"] == ("the mesh", source.vocabulary, source.batch, ("nats", run.model.vocab_size))
    assert given["names"] == ["names of state of phase 0"]
    assert given["checkpoints"] == (tmp_path / "checkpoints", run.checkpoint)
    seed, (vocabulary, counts, description), replaced = given["initialize"]
    assert (seed, vocabulary, replaced("w"), replaced("v")) == (7, source.vocabulary, True, False)
    assert counts is source.unigram_counts and description == Description(run, 0, files, source.fingerprint)
    assert parts.saved == ["of drawn"]
    session = given["session"]
    assert (session["run"], session["workdir"], session["tokenizer"]) == (run, tmp_path, files)
    assert (session["source"], session["start"], session["evaluation"]) == (source, description, judge)
    assert session["votes"] == "votes of the mesh"


@pytest.mark.parametrize(("latest", "phase"), [(0, 0), (3, 0), (6, 0), (7, 1), (12, 1), (15, 1)])
def test_a_state_is_restored_in_the_shapes_of_the_phase_that_made_it(
    latest: int, phase: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, run = Parts(monkeypatch, latest), run_of()
    monkeypatch.setattr(evaluation.HeldOut, "names", lambda self, program: [])
    with pytest.raises(Called):
        loop.train(run, tmp_path, ChainSource(run.data), {})
    assert parts.given["restore"] == (latest, f"state of phase {phase}")
    assert parts.given["session"]["start"] is parts.description and not parts.saved
    assert parts.given["session"]["evaluation"] == evaluation.HeldOut.of(run, parts.given["session"]["source"])


@pytest.mark.parametrize(("received", "hosts_of_run"), [(None, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 2)])
def test_a_run_ends_with_its_last_evaluation_and_checkpoint(
    received: signal.Signals | None, hosts_of_run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal after the last step is told of on one host; on several the run is done."""
    parts, run, done = Parts(monkeypatch, 12), run_of(), []
    parts.description = dataclasses.replace(parts.description, step=12)

    class Session:
        is_primary, exhausted, metrics = True, False, {"eval/loss": 2.0}
        stop = SimpleNamespace(received=received)
        terminal = SimpleNamespace(print=lambda line: done.append(line))

        def __enter__(self) -> "Session":
            return self

        def __exit__(self, *_: Any) -> None:
            done.append("closed")

        def adapted(self, program: Any, state: Any) -> Any:
            return SimpleNamespace(adapted=program)

        def evaluate(self, program: Any, state: Any, step: int) -> Any:
            done.append(("evaluated", program.adapted.phase.index, state, step))
            return f"{state}, evaluated"

        def save(self, state: Any, step: int) -> None:
            done.append(("saved", state, step))

    monkeypatch.setattr(loop, "_Session", lambda **_: Session())
    monkeypatch.setattr(hosts, "watched", lambda settings: contextlib.nullcontext("progressed"))
    monkeypatch.setattr(evaluation.HeldOut, "names", lambda self, program: [])
    monkeypatch.setattr(loop.header, "mesh", lambda placed: placed.mesh)
    monkeypatch.setattr(loop.header, "cores", lambda before: [f"{before} cores"])
    monkeypatch.setattr(loop.jax, "process_count", lambda: hosts_of_run)
    stopped = pytest.raises(Interrupted, match=r"Stopped by SIGTERM and saved at step 12, the last\.")
    with stopped if received and hosts_of_run == 1 else contextlib.nullcontext():
        result = loop.train(run, tmp_path, ChainSource(run.data), {})
        assert (result.state, result.metrics) == ("state of phase 1, evaluated", {"eval/loss": 2.0})
        assert result.program.adapted.phase.index == 1
    state = "state of phase 1"
    evaluated = ("evaluated", 1, state, 12)
    assert done == ["the mesh", "0 cores", evaluated, ("saved", f"{state}, evaluated", 12), "closed"]


def session_of(run: Any, workdir: Path, start: Description, **others: Any) -> loop._Session:
    given = {"source": None, "tokenizer": {}, "keeper": None, "votes": None, "evaluation": None, "program_of": None}
    return loop._Session(run=run, workdir=workdir, start=start, **given | others)


def test_a_resumed_run_goes_on_with_what_its_checkpoint_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(training={"steps": 12, "profile_steps": (2, 9), "patience": 4}, checkpoint={"best": "-eval/accuracy"})
    start = Description(run, 5, {}, "", {"eval/loss": 2.0}, {"loss": (6.0, 2)}, (1.0, 3))
    session = session_of(run, tmp_path, start)
    assert (session.evaluated, session.metrics, session.record) == (5, {"eval/loss": 2.0}, (1.0, 3))
    assert session.window.sums == {"loss": (6.0, 2)} and not session.exhausted
    session.record = (1.0, 4)
    assert session.exhausted and session.best.name == "eval/accuracy"
    assert session_of(run, tmp_path, Description(run, 5, {})).evaluated == -1
    made: dict[str, Any] = {}
    monkeypatch.setattr(
        loop, "MetricsFile", lambda *given: made.update(file=given) or SimpleNamespace(folder=tmp_path / "here")
    )
    monkeypatch.setattr(loop, "Terminal", lambda *given: made.update(terminal=given))
    monkeypatch.setattr(loop, "Profile", lambda *given: made.update(profile=given))
    monkeypatch.setattr(loop, "StopSignals", lambda: SimpleNamespace(__enter__=lambda: None))
    session.__enter__()
    assert made == {
        "file": (tmp_path, 5, run),
        "terminal": (12, 5),
        "profile": ((2, 9), tmp_path / "here" / "profile", 6, 12),
    }


class Loop:
    """A session whose parts write down in which order they are called, and a program of three steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: Any, due: dict[int, loop._Due], **changed: Any) -> None:
        self.done: list[str] = []
        note = self.done.append
        monkeypatch.setattr(hosts, "agree", lambda name, value="": note(name))
        monkeypatch.setattr(loop, "local_rows", lambda batch: f"rows of {batch}")
        monkeypatch.setattr(loop, "on_device", lambda rows, batch: self.batches(rows, batch))
        pace = SimpleNamespace(
            throttle=lambda: None,
            next_batch=next,
            add=lambda metrics: note(f"added {metrics['loss']}"),
            resume=lambda: note("resumed"),
        )
        monkeypatch.setattr(loop, "Pace", lambda: pace)
        nothing = loop._Due(log=False, evaluate=False, save=False, stop=0)
        self.session = SimpleNamespace(
            run=run,
            compile=lambda program, state, done: (self.compiled, "rates"),
            source=SimpleNamespace(train=lambda phase, start, rows: (phase.index, start, rows)),
            profile=SimpleNamespace(
                before=lambda step: note(f"before {step}"), after=lambda step, state: note(f"after {step}")
            ),
            progressed=lambda doing, timed=True: note(f"{doing} {timed}"),
            stop=SimpleNamespace(unsaved=False, received=None),
            due=lambda step, last: due.get(step, nothing),
            gather=lambda pace, step: note(f"gathered {step}") or {"loss": 1.0},
            log=lambda step, metrics, pace, rates: note(f"logged {step}"),
            show_unlogged=lambda step, metrics, pace, rates: note(f"shown {step}"),
            evaluate=lambda program, state, step: note(f"evaluated {step}") or state,
            save=lambda state, step: note(f"saved {step} of {state}"),
            votes=lambda stop, overdue: (stop, overdue),
            fits=lambda program, metrics: True,
            exhausted=False,
        )
        self.session.__dict__.update(changed)
        self.program = SimpleNamespace(phase=phases.ResolvedPhase(1, 6, 6, 8, 4, 1), batch="the batch")

    def compiled(self, state: int, batch: str) -> tuple[int, dict[str, Any]]:
        self.done.append(f"{batch} to {state}")
        return state + 1, {"loss": state}

    def batches(self, rows: Any, batch: Any) -> Iterator[str]:
        assert rows == (1, 2, "rows of the batch") and batch == "the batch"
        try:
            yield from (f"batch {number}" for number in range(9, 13))
        finally:
            self.done.append("closed")

    def phase(self) -> tuple[int, int]:
        """The steps after the eighth of twelve; the phase began after the sixth."""
        return loop._Session.phase(self.session, self.program, 8, 8)


def due(**work: Any) -> loop._Due:
    return loop._Due(**{"log": False, "evaluate": False, "save": False, "stop": 0} | work)


def test_what_is_due_after_a_step_is_done_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of it is not counted. The last checkpoint waits for the last evaluation."""
    whole = due(log=True, evaluate=True, save=True)
    parts = Loop(monkeypatch, run_of(), {10: whole, 11: due(save=True), 12: whole})
    assert parts.phase() == (12, 12) and parts.session.stop.unsaved
    timed = [
        f"waiting for the batch of step 9 {False}",
        *(f"waiting for the batch of step {n} True" for n in (10, 11, 12)),
    ]
    assert [line for line in parts.done if line.startswith("waiting")] == timed
    order = [line for line in parts.done if not line.startswith(("waiting", "computing", "before", "added"))]
    assert order == [
        *("the start of phase 1", "batch 9 to 8", "after 9"),
        *("batch 10 to 9", "after 10", "gathered 10", "logged 10", "evaluated 10", "saved 10 of 10", "resumed"),
        *("batch 11 to 10", "after 11", "gathered 11", "shown 11", "saved 11 of 11", "resumed"),
        *("batch 12 to 11", "after 12", "gathered 12", "logged 12", "evaluated 12", "resumed", "closed"),
    ]
    assert parts.done.index("before 9") < parts.done.index("batch 9 to 8") < parts.done.index("added 8")


@pytest.mark.parametrize(
    ("changed", "last"), [({"exhausted": True}, 10), ({"fits": lambda program, metrics: False}, 10), ({}, 12)]
)
def test_a_phase_ends_where_nothing_improves_or_another_program_is_needed(
    changed: dict[str, Any], last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends has its checkpoint after its evaluation."""
    parts = Loop(monkeypatch, run_of(), {10: due(evaluate=True, save=True), 12: due(log=True)}, **changed)
    assert parts.phase()[1] == last and parts.done[-1] == "closed"
    assert any(line.startswith("saved") for line in parts.done) is ("exhausted" not in changed)


def stopped(parts: Loop) -> str:
    with pytest.raises(Interrupted) as raised:
        parts.phase()
    return str(raised.value)


def test_a_signal_saves_once_and_closes_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes during an evaluation, or to another host."""
    parts = Loop(monkeypatch, run_of(), {9: due(stop=15)})
    assert stopped(parts) == "Stopped by SIGTERM on another host and saved at step 9."
    assert parts.done[-3:] == ["shown 9", "saved 9 of 9", "closed"]
    parts = Loop(monkeypatch, run_of(), {9: due(evaluate=True)}, votes=lambda stop, overdue: (2, overdue))
    parts.session.stop.received = 2
    assert stopped(parts) == "Stopped by SIGINT and saved at step 9."
    parts = Loop(monkeypatch, run_of(), {12: due(stop=15)})
    assert parts.phase() == (12, 12) and not any(line.startswith("saved") for line in parts.done)


def test_a_loss_that_is_no_number_waits_for_the_save_that_is_named() -> None:
    done: list[str] = []
    keeper = SimpleNamespace(wait=lambda: done.append("waited"), latest=lambda: 3 if done else None)
    session = SimpleNamespace(keeper=keeper, window=Window({}))
    pace = SimpleNamespace(drain=lambda: [{"loss": 1.0}, {"loss": float("inf")}])
    with pytest.raises(UserError, match=r"found inf at step 5;.*the last checkpoint is of step 3"):
        loop._Session.gather(session, pace, 5)
    assert session.window.sums == {"loss": (1.0, 1)}
    pace = SimpleNamespace(drain=lambda: [{"loss": 3.0}, {"loss": 4.0}])
    assert loop._Session.gather(session, pace, 7) == {"loss": 4.0}  # of the last step
    assert session.window.sums == {"loss": (8.0, 3)}


def test_a_checkpoint_has_all_that_a_resumed_run_goes_on_with() -> None:
    """Its records are in the folder before it is. Metrics are those of its own step."""
    done: list[Any] = []
    session = SimpleNamespace(
        run=run_of(),
        is_primary=True,
        file=SimpleNamespace(flush=lambda: done.append("flushed")),
        progressed=lambda doing: done.append(doing),
        metrics={"eval/loss": 2.0},
        evaluated=6,
        tokenizer={"vocab.txt": b"a"},
        source=SimpleNamespace(fingerprint="chain"),
        window=Window({"loss": (6.0, 2)}),
        record=(1.0, 3),
        keeper=SimpleNamespace(save=lambda state, description: done.append((state, description))),
        saved_at=0.0,
    )
    for step, metrics in ((6, {"eval/loss": 2.0}), (7, {})):
        done.clear()
        loop._Session.save(session, "the state", step)
        expected = Description(run_of(), step, {"vocab.txt": b"a"}, "chain", metrics, {"loss": (6.0, 2)}, (1.0, 3))
        assert done == ["flushed", f"saving at step {step}", ("the state", expected)]
    assert session.saved_at > 0


@pytest.mark.parametrize(
    ("error", "whole", "all_hosts"),
    [(None, True, True), (Interrupted("Saved."), False, True), (OSError("gone"), False, False)],
)
def test_whatever_ends_a_run_its_parts_are_closed(error: Exception | None, whole: bool, all_hosts: bool) -> None:
    """The last of them is the handling of signals, which a save that is in progress still needs."""
    done: list[Any] = []
    stop = type("Stop", (), {"__enter__": lambda self: self, "__exit__": lambda self, *_: done.append("stop")})
    session = SimpleNamespace(
        stop=stop(),
        _finish_saving=lambda all_hosts: done.append(("saved", all_hosts)),
        is_primary=True,
        file=SimpleNamespace(close=lambda whole: done.append(("file", whole))),
        terminal=SimpleNamespace(close=lambda: done.append("terminal")),
        profile=SimpleNamespace(close=lambda: done.append("profile")),
    )
    loop._Session.__exit__(session, type(error), error, None)
    assert done == ["profile", "terminal", ("file", whole), ("saved", all_hosts), "stop"]


@pytest.mark.parametrize("primary", [True, False])
def test_a_step_is_compiled_measured_and_checked_before_it_runs(primary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are those of the sizes that the program computes with, and of all tokens of a batch."""
    done: list[Any] = []
    run = SimpleNamespace(trained=SimpleNamespace(train_flops=lambda model, batch: (model, batch)))
    compiled = SimpleNamespace()
    lowered = SimpleNamespace(compile=lambda: compiled)
    program = SimpleNamespace(
        mesh=SimpleNamespace(size=4),
        phase=SimpleNamespace(index=1),
        model="smaller",
        batch="the batch",
        train=SimpleNamespace(lower=lambda *given: done.append(given) or lowered),
    )
    monkeypatch.setattr(loop.header, "tokens", lambda run, program: 512)
    monkeypatch.setattr(loop.header, "lines", lambda *given: done.append(given[:5]) or ["header"])
    monkeypatch.setattr(loop.peak, "PeakFlops", lambda mesh: f"peak of {mesh.size}")
    monkeypatch.setattr(loop.memory, "check", lambda *given: done.append(given))
    session = SimpleNamespace(
        run=run,
        is_primary=primary,
        progressed=lambda doing, timed: done.append((doing, timed)),
        terminal=SimpleNamespace(print=lambda line: done.append(line.split()[0])),
    )
    peak = "peak of 4" if primary else None
    flops = ("smaller", "the batch")
    assert loop._Session.compile(session, program, "the state", 6) == (compiled, loop._Rates(512, flops, peak))
    told = [(run, program, compiled, flops, peak), "header"] if primary else []
    first = [("compiling", False), *(["compile"] if primary else []), ("the state", "the batch")]
    assert done == [*first, *told, (run, program, compiled)]


def test_a_model_that_adapts_is_built_for_what_its_parameters_need() -> None:
    """Only if that changes; the phase stays."""

    @dataclasses.dataclass(frozen=True)
    class Model:
        width: int
        depth: int

    class Adapts(AdaptsModel):
        statistic = "width"

        def computes(self, model: Any) -> str:
            return ""

        def measured(self, config: Any, params: Any) -> Any:
            return params["width"] + config.width

        def adapted(self, config: Any, statistic: float) -> Any:
            return dataclasses.replace(config, width=round(statistic))

    run = dataclasses.replace(experiments.gpt2(), model=Model(1, depth=2), objective=Adapts())
    built: list[Any] = []
    session = SimpleNamespace(run=run, program_of=lambda run, phase: built.append((run, phase)) or "another")
    program = SimpleNamespace(model=Model(3, depth=1), phase="the phase")
    for width, expected in ((2.0, program), (4.0, "another")):
        state = SimpleNamespace(params={"width": width})
        assert loop._Session.adapted(session, program, state) is expected
        assert loop._Session.fits(session, program, {"width": width + 1}) is (expected is program)
    assert built == [(dataclasses.replace(run, model=Model(5, depth=1)), "the phase")]
