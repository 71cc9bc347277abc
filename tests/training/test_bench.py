"""What a bench prints."""

import json

from plmjax import cli
from tests.conftest import SMALL


def test_a_measure_that_this_machine_lacks_is_left_out(capsys):
    cli.run(["bench", "experiments/bert_tiny.py", *SMALL, "--measured_steps", "1"])
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()}
    assert "mfu" not in shown and "None" not in shown.values()  # a CPU has no data sheet
    assert shown["device"] == "cpu" and {"of_matmul", "step_seconds", "input"} <= shown.keys()
    cli.run(["bench", "experiments/bert_tiny.py", *SMALL, "--measured_steps", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["mfu"] is None
