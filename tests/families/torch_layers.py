"""torch's recurrent layers with the parameters of ours, for one text without padding."""

from collections.abc import Mapping
from typing import Any

from tests.optional import torch


def lstm(params: Mapping[str, Any], name: str, x: Any, *, state: Any = None, forget_bias: float = 0.0) -> tuple:
    """[T D] -> the outputs [T P], and the last output [P] and cell [H]. state: output and cell before; None: zero."""
    kernel, recurrent, bias = (params[f"{name}/{part}"] for part in ("input/kernel", "recurrent_kernel", "input/bias"))
    second = params[f"{name}/recurrent_bias"] if f"{name}/recurrent_bias" in params else torch.zeros_like(bias)
    bias = bias + torch.tensor([0.0, forget_bias, 0.0, 0.0])[:, None]
    weights = [kernel.flatten(1).T, recurrent.flatten(1).T, bias.flatten(), second.flatten()]
    if f"{name}/projection_kernel" in params:
        weights.append(params[f"{name}/projection_kernel"].T)
    sizes = recurrent.shape[0], bias.shape[-1]
    state = [x.new_zeros(size) for size in sizes] if state is None else state
    outputs, last, cell = torch.lstm(
        x[:, None], [one[None, None] for one in state], weights, True, 1, 0.0, False, False, False
    )
    return outputs[:, 0], last[0, 0], cell[0, 0]


def gru(params: Mapping[str, Any], name: str, x: Any) -> tuple:
    """[T D] -> the outputs [T H], and the last one [H]."""
    kernel, recurrent, bias = (params[f"{name}/{part}"] for part in ("input/kernel", "recurrent_kernel", "input/bias"))
    second = torch.cat([torch.zeros_like(bias)[:2], params[f"{name}/candidate_bias"][None]])
    weights = [kernel.flatten(1).T, recurrent.flatten(1).T, bias.flatten(), second.flatten()]
    outputs, last = torch.gru(x[:, None], x.new_zeros(1, 1, bias.shape[-1]), weights, True, 1, 0.0, False, False, False)
    return outputs[:, 0], last[0, 0]


def both_ways(params: Mapping[str, Any], name: str, x: Any, layer: Any = lstm, **settings: Any) -> tuple:
    """Both directions side by side: outputs [T 2 P], and the last state of each, joined."""
    forward, *states = layer(params, f"{name}/forward", x, **settings)
    backward, *others = layer(params, f"{name}/backward", x.flip(0), **settings)
    pairs = zip([forward, *states], [backward.flip(0), *others], strict=True)
    return tuple(torch.cat(both, dim=-1) for both in pairs)
