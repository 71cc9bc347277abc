"""Members of an ensemble: fine-tuned runs on one task whose predictions are averaged. A single run is one member."""

import functools
from collections.abc import Sequence
from pathlib import Path

from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError, listed
from plmjax.experiment import Experiment
from plmjax.finetuning import inputs
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.evaluation import Forward
from plmjax.finetuning.tasks.task import Examples, Outputs, Task
from plmjax.inference import encoded_texts
from plmjax.inference.program import program_of
from plmjax.training.checkpoints import checkpoints, items
from plmjax.training.program import Program


class Member:
    """One run of an ensemble. Its program is compiled once, for the first examples.

    directory: directory of the checkpoint.
    run: its experiment, with task settings that a user may have changed.
    unknown: counter of the unknown tokens in all its inputs.
    """

    def __init__(self, directory: Path, run: Experiment, max_unknown: float = MAX_UNKNOWN) -> None:
        """Create a member. max_unknown: largest fraction of unknown tokens of the examples read so far."""
        self.run, self.directory = run, directory
        self._tokenizer = checkpoints.describe(directory).load_tokenizer()
        self.unknown = UnknownTokens(self._tokenizer.vocabulary, encoded_texts.limit_of(run.model, max_unknown))
        self._forward = Forward(run, self._tokenizer)
        self._program: Program | None = None

    @functools.cached_property
    def _compiled(self):
        return checkpoints.load_loss_inputs(self.directory, self._program.state)

    def __call__(self, examples: Examples) -> tuple[Encoded, Outputs]:
        """Return the encoded examples, and the model's outputs for each sequence.

        Raises:
            UserError: a wrong example, or too many unknown tokens.
        """
        rows = inputs.rows(self.run, examples, self._tokenizer)
        rows.encoded.count(self.unknown)
        self.unknown.check()
        source = TaskSource([rows], rows, self._tokenizer.vocabulary, seed=self.run.training.seed)
        if self._program is None:
            self._program = program_of(self.run, source)
        _, outputs = self._forward(self._program, self._compiled, source)
        return rows.encoded, outputs


def further_members(first: Member, paths: Sequence[str | Path], max_unknown: float = MAX_UNKNOWN) -> list[Member]:
    """Return the further members of an ensemble.

    Raises:
        UserError: no checkpoint, one that was not fine-tuned on a task, one with another kind of task or other labels
            than the first, or one that is already a member.
    """
    run, found = first.run, []
    for path in paths:
        directory = checkpoints.find(path)
        if _contents(directory) in [_contents(member.directory) for member in (first, *found)]:
            raise UserError(
                f"Expected different runs in an ensemble, found {path} twice; leave one out or name another --ensemble."
            )
        own = checkpoints.describe(directory).experiment
        known, labels = (getattr(one.objective, "labels", ()) for one in (run, own))
        same = isinstance(own.data, Task) and type(own.objective) is type(run.objective)
        if not same or labels != known:
            of = f" with the labels {listed(known)}" if known else ""
            has = f" with the labels {listed(labels)}" if same else ""
            raise UserError(
                f"Expected runs of {type(run.objective).__name__}{of} for --ensemble, found one of "
                f"{type(own.objective).__name__}{has} in {path}; name runs on one task."
            )
        found.append(Member(directory, own, max_unknown))
    return found


def _contents(checkpoint: Path) -> bytes:
    """Return the digests of a checkpoint's files. A copy has the same digests."""
    return (checkpoint / items.MANIFEST).read_bytes()


def average_predictions(members: Sequence[Member], examples: Examples) -> tuple[Encoded, Outputs]:
    """Return the examples as encoded by the first member, and the mean of all members' outputs.

    Raises:
        UserError: predictions of the task have no mean, or the members encode the examples as different sequences.
    """
    encoded, *rest = zip(*(member(examples) for member in members), strict=True)
    (outputs,) = rest
    if len(members) == 1:
        return encoded[0], outputs[0]
    if any(one.choices != encoded[0].choices for one in encoded):
        raise UserError(
            "Expected runs that read each pair equally often for --ensemble, found some that read it in both orders "
            "and others that do not; name runs of one kind."
        )
    return encoded[0], members[0].run.objective.average_outputs(outputs, encoded[0])
