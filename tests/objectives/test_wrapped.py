"""An objective around another one asks it for everything that a subclass does not define itself."""

import inspect
import types
from typing import Any

import pytest

from plmjax.objectives.objective import LossInputs, Objective
from plmjax.objectives.wrapped import ADDED, Wrapped

METHODS = sorted(name for name, _ in inspect.getmembers(Objective, inspect.isfunction) if not name.startswith("_"))
OWN, MODEL = "constants of the inner objective", {"bert": 1}
INPUTS = LossInputs(MODEL | {ADDED: 2}, constants="constants of the outer objective")


class Inner:
    """Remembers what it is asked, and answers each question in its own way."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any, **named: Any) -> Any:
            given = inspect.signature(getattr(Objective, name)).bind(None, *arguments, **named).arguments
            self.asked.append((name, {key: value for key, value in given.items() if key != "self"}))
            return {"params": MODEL} if name in ("init", "constrain") else f"answer of {name}"

        return answer


class Outer(Wrapped):
    """Has constants of its own beside those of the inner objective."""

    def inner_constants(self, constants: Any) -> Any:
        return OWN


@pytest.mark.parametrize("name", METHODS)
def test_every_question_goes_to_the_inner_objective(name: str) -> None:
    """With the same arguments, but for what is the outer objective's own: its parameters and its constants."""
    inner, given = Inner(), {}
    for parameter in list(inspect.signature(getattr(Objective, name)).parameters)[1:]:
        given[parameter] = {"loss_inputs": INPUTS, "params": INPUTS.params, "training": True}.get(parameter, parameter)
    found = getattr(Outer(inner), name)(**given)
    ((asked, passed),) = inner.asked
    assert asked == name
    if name == "init":
        assert found == {"params": MODEL}
    elif name == "constrain":
        assert found == {"params": MODEL, ADDED: 2}
    else:
        assert found == f"answer of {name}"
    for parameter, value in given.items():
        expected = {"loss_inputs": INPUTS.replace(params=MODEL, constants=OWN), "params": MODEL, "constants": OWN}
        assert passed[parameter] == expected.get(parameter, value), parameter


def test_the_added_parameters_are_drawn_beside_those_of_the_model() -> None:
    class Adding(Outer):
        def added(self, module: Any, params: Any, key: Any) -> dict[str, Any]:
            return {"scores": (module, params, key)}

    module = types.SimpleNamespace()
    found = Adding(Inner()).init(module, "key", "batch", "constants", "carry")
    assert found == {"params": MODEL | {ADDED: {"scores": (module, MODEL, "key")}}}
