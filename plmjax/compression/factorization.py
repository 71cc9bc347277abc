"""`plmjax compress factorize`: matrices of the layers as products of two matrices of a lower rank.

The singular value decomposition W = U S V' gives the nearest product of rank R, A B with A = U_R S_R^1/2 and
B = S_R^1/2 V_R' (Eckart and Young 1936). The fraction of the energy that it keeps is the sum of the R largest squared
singular values, divided by the sum of all.

Layers are computed in one loop, so that a projection has the same rank in every layer. A matrix stays dense if the
product would not have fewer weights.
"""

import dataclasses
import math
from pathlib import Path

import numpy as np

from plmjax.compression.compression import Params
from plmjax.compression.kernels import input_axes, layer_kernels
from plmjax.compression.run import Source, hold_output, write
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.models.compressed.configs import LowRankConfig, compressed_class, with_compression
from plmjax.models.compressed.low_rank import EXPAND, KINDS, REDUCE


@hold_output
def factorize(checkpoint: str | Path, output: Path, rank: int | None, energy: float | None) -> str:
    """Factorize a checkpoint, and return a line about the result.

    Args:
        checkpoint: a run directory or a checkpoint.
        output: the run directory to write.
        rank: the rank of every product.
        energy: the least fraction of the energy that every product keeps; one of rank and energy is set.

    Raises:
        UserError: neither or both of rank and energy are set, the value is out of its range or makes no matrix smaller,
            the model cannot have lower ranks or has them already, or the output has a run.
    """
    if (rank is None) == (energy is None):
        raise UserError(
            f"Expected either --rank or --energy, found {'neither' if rank is None else 'both'}; set one, such as "
            f"--energy 0.9."
        )
    if rank is not None and rank < 1:
        raise UserError(f"Expected --rank of at least 1, found {rank}; raise it.")
    if energy is not None and not 0 < energy < 1:
        raise UserError(f"Expected --energy above 0 and below 1, found {energy:g}; change it.")
    source = Source.read(checkpoint)
    run = source.description.experiment
    kinds = projections(source.params, run.model)
    found = {kind: Factors.of(source.params, kinds[kind]) for kind in KINDS}
    ranks = tuple(
        each.useful_rank(each.rank_of(energy) if rank is None else min(rank, each.full_rank)) for each in found.values()
    )
    if not any(ranks):
        largest = max(each.largest_useful_rank for each in found.values())
        raise UserError(
            f"Expected {f'--rank of at most {largest}' if rank else 'a lower --energy'}, with which a product has "
            f"fewer weights than its matrix, found {rank or f'{energy:g}'}; lower it."
        )
    params = dict(source.params)
    for each, own in zip(found.values(), ranks, strict=True):
        if own:
            params = each.apply(params, own)
    kept = [each.kept_energy(own) if own else 1.0 for each, own in zip(found.values(), ranks, strict=True)]
    run = dataclasses.replace(run, model=with_compression(run.model, ranks=ranks))
    settings = {"ranks": list(ranks)} | ({"rank": rank} if energy is None else {"energy": energy})
    line = write(output, source, params, run=run, by="factorize", settings=settings)
    named = ", ".join(
        f"{kind} {own or 'whole'} ({fraction:.1%})" for kind, own, fraction in zip(KINDS, ranks, kept, strict=True)
    )
    return f"factorized {line} in {output}; ranks and least energy: {named}"


def projections(params: Params, model: ModelConfig) -> dict[str, dict[str, bool]]:
    """Return the projections of each of `KINDS`: path -> true if the kernel is a stack of the layers' matrices.

    Raises:
        UserError: the model cannot have lower ranks, or has them already.
    """
    if compressed_class(model) is None:
        raise UserError(
            f"Expected a BERT, RoBERTa, ALBERT, ELECTRA, DistilBERT, GPT or GPT-2 to factorize, found {model.system}; "
            f"factorize another checkpoint."
        )
    if isinstance(model, LowRankConfig) and model.ranks:
        raise UserError(
            f"Expected a model with whole matrices, found ranks of {' '.join(map(str, model.ranks))}; factorize the "
            f"checkpoint that it was made from."
        )
    kernels = layer_kernels(params, model)
    found = {
        kind: {
            path.removesuffix("/kernel"): stacked
            for path, stacked in kernels.items()
            if path.endswith(f"/{kind}/kernel")
        }
        for kind in KINDS
    }
    if not all(found.values()):
        raise UserError(f"Expected layers with {', '.join(KINDS)}, found {model.system}; factorize another checkpoint.")
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Factors:
    """The matrices of one kind of projection in all layers, and their singular value decompositions.

    kernels: path of a projection -> (kernel, number of layer axes, number of input axes).
    left, values, right: path -> U [L I K], S [L K] and V' [L K O], float64; L is 1 if the kernel is no stack.
    """

    kernels: dict[str, tuple[np.ndarray, int, int]]
    left: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    right: dict[str, np.ndarray]

    @classmethod
    def of(cls, params: Params, paths: dict[str, bool]) -> "Factors":
        """Decompose the kernels of projections."""
        kernels, left, values, right = {}, {}, {}, {}
        for path, stacked in paths.items():
            kernel = params[f"{path}/kernel"]
            first = int(stacked)
            inputs = input_axes(f"{path}/kernel", kernel.ndim - first)
            kernels[path] = kernel, first, inputs
            size = math.prod(kernel.shape[first : first + inputs])
            matrices = kernel.reshape(len(kernel) if stacked else 1, size, -1).astype(np.float64)
            left[path], values[path], right[path] = np.linalg.svd(matrices, full_matrices=False)
        return cls(kernels, left, values, right)

    @property
    def full_rank(self) -> int:
        """The full rank of the smallest matrix."""
        return min(values.shape[1] for values in self.values.values())

    @property
    def largest_useful_rank(self) -> int:
        """The largest rank at which every product has fewer weights than its matrix."""
        sizes = [(self.left[path].shape[1], self.right[path].shape[2]) for path in self.kernels]
        return min((inputs * outputs - 1) // (inputs + outputs) for inputs, outputs in sizes)

    def useful_rank(self, rank: int) -> int:
        """Return the rank, or 0 if a product of that rank does not have fewer weights than the matrix."""
        return rank if rank <= self.largest_useful_rank else 0

    def rank_of(self, energy: float) -> int:
        """Return the smallest rank that keeps this fraction of the energy of every matrix."""
        return max(
            int(np.argmax(np.cumsum(one**2) >= energy * np.sum(one**2))) + 1
            for values in self.values.values()
            for one in values
        )

    def kept_energy(self, rank: int) -> float:
        """Return the smallest fraction of a matrix's energy that a rank keeps; 1 for a matrix of zeros."""
        return min(
            float(np.sum(one[:rank] ** 2) / np.sum(one**2)) if np.any(one) else 1.0
            for values in self.values.values()
            for one in values
        )

    def apply(self, params: Params, rank: int) -> Params:
        """Return the parameters with two kernels in place of each factorized kernel."""
        params = dict(params)
        for path, (kernel, first, inputs) in self.kernels.items():
            roots = np.sqrt(self.values[path][:, :rank])
            reduce = self.left[path][:, :, :rank] * roots[:, None]
            expand = roots[:, :, None] * self.right[path][:, :rank]
            del params[f"{path}/kernel"]
            layers, shape = kernel.shape[:first], kernel.shape[first:]
            reduce = reduce.reshape(*layers, *shape[:inputs], rank)
            expand = expand.reshape(*layers, rank, *shape[inputs:])
            params[f"{path}/{REDUCE}/kernel"] = reduce.astype(np.float32)
            params[f"{path}/{EXPAND}/kernel"] = expand.astype(np.float32)
            if f"{path}/bias" in params:
                params[f"{path}/{EXPAND}/bias"] = params.pop(f"{path}/bias")
        return params
