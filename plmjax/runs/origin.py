"""The origin of a run: random values, a checkpoint, or a file of word vectors.

`Origin.find` reads the one that --from names. It determines the model, the tokenizer and the initial parameters of the
run, both in pretraining and in fine-tuning.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import flax.traverse_util
import jax
import numpy as np

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.runs import word_vectors as token_embeddings
from plmjax.objectives.wrapped import ADDED
from plmjax.parallel import hosts
from plmjax.training.checkpoints import checkpoints, start
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.training.checkpoints.start import InitialParameters
from plmjax.interop.word_vectors import WordVectors

PRUNED = 0.01
"""Share of zeros in kernels from which on a checkpoint counts as pruned; trained values are hardly ever exactly 0."""


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """The origin of a run.

    name: the value of --from.
    description: description of the checkpoint whose model and tokenizer the run takes; None if the run has its own.
    params: a tree of arrays on the host; None if every parameter is sampled from the seed.
    vectors: the first rows of the token embeddings; None if --from does not name a file of word vectors.
    """

    name: str | Path
    description: Description | None = None
    params: Any = None
    vectors: WordVectors | None = None

    @classmethod
    def find(cls, name: str | Path, like: str | Path | None = None) -> Self:
        """Read an origin: a run directory, a checkpoint, a file of word vectors, or "random".

        like: with "random", a checkpoint whose model and tokenizer the run takes.

        Raises:
            UserError: there is none, it is damaged, or `like` is set without "random".
        """
        if str(name) == start.RANDOM:
            return cls(name, None if like is None else checkpoints.describe(checkpoints.find(like)))
        if like is not None:
            raise UserError(f"Expected --like only with --from {start.RANDOM}, found --from {name}; leave it out.")
        if (vectors := token_embeddings.vectors_at(name)) is not None:
            return cls(name, vectors=vectors)
        params, description = checkpoints.load_parameters(name)
        return cls(name, description, params)

    def mapped(self, run: Experiment) -> Self:
        """Return the origin with its parameters mapped by `run.start` to the run's model, which must be set."""
        if self.params is None:
            return self
        return dataclasses.replace(self, params=start.mapped(run, self.params, self.description))

    @property
    def recorded(self) -> Any:
        """Return the arrays whose digest start.json keeps, or None for random values."""
        return self.params if self.vectors is None else self.vectors.vectors

    def tokenizer(self, run: Experiment) -> Any:
        """Return the checkpoint's tokenizer, a plmjax.data.tokenizers.Tokenizer, or None without a checkpoint.

        Raises:
            UserError: the experiment names another tokenizer.
        """
        return None if self.description is None else start.tokenizer(run, self.name, self.description)

    def check(self, run: Experiment, tokenizer: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> None:
        """Raise UserError for word vectors that do not fit the model or the tokenizer.

        batch: field -> shape and dtype of a batch of the run.
        """
        if self.vectors is not None:
            token_embeddings.check(run, tokenizer, self.vectors, batch)

    def initial_parameters(
        self,
        run: Experiment,
        tokenizer: Any,
        in_new_head: Callable[[str], bool] = lambda name: False,
        report: Callable[[str], None] = print,
    ) -> InitialParameters:
        """Return the initial parameters of a run.

        All parameters of a checkpoint are taken, except for those of a new head and those that `run.start` draws. Heads
        that the checkpoint lacks are sampled too.

        Args:
            tokenizer: the tokenizer of the run.
            in_new_head: function from a name (`classifier/kernel`) to true if the parameter belongs to a head that is
                sampled even if the checkpoint has it.
            report: called with a line about word vectors that are found, about parameters that are sampled because the
                checkpoint lacks them, or about zeros of pruning that training does not keep.
        """
        if self.vectors is not None:
            return InitialParameters(lambda params: self._with_vectors(params, run, tokenizer, report))
        if self.params is None:
            return InitialParameters()
        own = flax.traverse_util.flatten_dict(self.params, sep="/")
        found = own.keys()
        zeros = pruned_share(own)
        if zeros >= PRUNED and run.compression is None and hosts.is_primary():
            report(
                f"start      {zeros:.0%} of the weights of {self.name} are 0, as after pruning, and training fills "
                f"them; prune the result again, or train by plmjax compress prune"
            )

        def sampled(name: str) -> bool:
            return in_new_head(name) or name.split("/")[0] == ADDED

        def from_drawn(params: Any) -> Any:
            missing = start.missing_head_parameters(self.params, params, run.model)
            missed = [name for name in missing if not (sampled(name) or run.start.draws(name))]
            if missed and hosts.is_primary():
                report(f"start      initialized at random, as {self.name} has none: {start.abbreviated(missed)}")

            def drawn(name: str) -> bool:
                return sampled(name) or name in missing or (name not in found and run.start.draws(name))

            return start.transfer(self.params, params, self.name, drawn)

        return InitialParameters(from_drawn, lambda name: name in found and not sampled(name))

    def _with_vectors(self, params: Any, run: Experiment, tokenizer: Any, report: Callable[[str], None]) -> Any:
        params, found = token_embeddings.with_vectors(params, run.model.system.token_table, tokenizer, self.vectors)
        if hosts.is_primary():
            report(f"start      {found}")
        return params


def pruned_share(params: dict[str, Any]) -> float:
    """Return the share of zeros in the kernels of parameters by path; a kernel that is 0 everywhere was not pruned."""
    kernels = [np.asarray(array) for path, array in params.items() if path.endswith("kernel")]
    zeros = [kernel.size - np.count_nonzero(kernel) for kernel in kernels]
    pruned = sum(count for count, kernel in zip(zeros, kernels, strict=True) if count < kernel.size)
    return pruned / max(sum(kernel.size for kernel in kernels), 1)
