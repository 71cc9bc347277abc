"""Stored teacher scores: the teacher is computed once before training, and its largest logits are kept in a file.

A student that trains for many epochs then needs no forward pass of its teacher. The k largest logits of a prediction
are kept, and the teacher's distribution is the softmax over these k classes. For a task with k classes this is the full
distribution.

The file OUTPUT/teacher_top_K.npz has arrays with one row for each of the N predictions of the train file, in its order:

    classes   int32 [N k]     the classes of the largest logits
    logits    float32 [N k]   these logits, the largest first
    offsets   int64 [E+1]     the first row of each of the E examples

A prediction is the label of a text, or a token of the target (or of the full row, if a decoder reads source and target
in one row). The teacher computes float32 on the first device of every process. A seal beside the file
(plmjax/files/seals.py) names the teacher and the rows.
"""

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.compression.distillation.captured_activations import capture
from plmjax.compression.distillation.distributions import NextTokens, TextLabels, distributions_of
from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.experiment import Experiment, to_dict
from plmjax.files import seals, storage
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.inputs import rows
from plmjax.finetuning.tasks.mixture import Mixture
from plmjax.finetuning.tasks.task import TaskObjective
from plmjax.objectives.objective import Batch, LossInputs, Objective, apply

FILE = "teacher_top_{}.npz"
"""Name of the file, with k."""
ROWS = 32
"""Number of rows that the teacher reads at once."""


@flax.struct.dataclass
class StoredScores:
    """The stored predictions of a batch.

    classes: int [... k]. logits: float32 [... k].
    """

    classes: jax.Array
    logits: jax.Array

    def divergence(self, student: jax.Array, temperature: float) -> jax.Array:
        """Return T^2 KL(teacher, student) over the teacher's k classes, student logits [... V] -> float32 [...].

        The student's probabilities are from the softmax over all classes.
        """
        log_student = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
        log_student = jnp.take_along_axis(log_student, self.classes, axis=-1)
        log_teacher = jax.nn.log_softmax(self.logits / temperature)
        return temperature**2 * jnp.sum(jnp.exp(log_teacher) * (log_teacher - log_student), axis=-1)


def score_rows(objective: Objective, batch: Batch, offsets: jax.Array) -> jax.Array:
    """Return the row of the file for every prediction of a batch, int [...]; arbitrary where the weight is 0."""
    if isinstance(distributions_of(objective), TextLabels):
        return offsets[jnp.maximum(batch["example_ids"], 0)]
    side = "decoder_" if "decoder_positions" in batch else ""
    slots = jnp.maximum(batch[f"{side}segment_ids"] - 1, 0)
    examples = jnp.take_along_axis(jnp.maximum(batch["example_ids"], 0), slots, axis=1)
    return offsets[examples] + batch[f"{side}positions"]


def look_up(objective: Objective, batch: Batch, constants: Any) -> StoredScores:
    """Return the stored predictions of a batch."""
    found = score_rows(objective, batch, constants["offsets"])
    return StoredScores(constants["classes"][found], constants["logits"][found])


def check(objective: Objective, data: Any) -> None:
    """Raise UserError for predictions that have no fixed row in a file."""
    fits = isinstance(objective, TaskObjective) and isinstance(distributions_of(objective), TextLabels | NextTokens)
    if not fits or isinstance(data, Mixture):
        raise UserError(
            f"Expected a task of labels of texts, or of written texts, for --compression.top_k, found "
            f"{type(objective).__name__}; leave it out, and the teacher is computed in each step."
        )


def write(path: Path, run: Experiment, params: Any, *, teacher: str, tokenizer: Any, top_k: int) -> None:
    """Compute the teacher of a run on its train file and write its largest scores, unless the file exists already.

    run: the experiment with its distillation. params, teacher: the parameters of the teacher, and their digest.
    """
    objective, config = run.objective, run.compression.teacher
    examples = rows(run, run.data.read("train"), tokenizer)
    encoded = examples.encoded
    made_from, seal = _made_from(run, encoded, teacher, top_k), path.with_suffix(".json")
    if seals.read(seal, made_from):
        return
    tokens = encoded if encoded.decoder is None else encoded.decoder
    is_text = isinstance(distributions_of(objective), TextLabels)
    offsets = np.arange(len(tokens.offsets), dtype=np.int64) if is_text else np.asarray(tokens.offsets, np.int64)
    module = objective.module(config, Execution())
    read = jax.jit(_largest, static_argnums=(0, 1, 2))
    found: dict[str, np.ndarray] = {}
    for first in range(0, len(examples), ROWS):
        table = examples.in_order[first : first + ROWS]
        table = np.concatenate([table, np.full((ROWS - len(table), table.shape[1]), -1)])
        batch = examples.batch(table, np.arange(ROWS))
        classes, logits, rows_of_file, weights = jax.device_get(
            read(objective, module, top_k, params=params, batch=batch, offsets=offsets)
        )
        if not found:
            found = {
                "classes": np.zeros((offsets[-1], classes.shape[-1]), np.int32),
                "logits": np.zeros((offsets[-1], classes.shape[-1]), np.float32),
            }
        there = weights > 0
        found["classes"][rows_of_file[there]], found["logits"][rows_of_file[there]] = classes[there], logits[there]
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.replace_file(path) as file, file.open("wb") as opened:
        np.savez(opened, offsets=offsets, **found)
    seals.write(seal, made_from, [path.name])


def _made_from(run: Experiment, encoded: Encoded, teacher: str, top_k: int) -> str:
    """Return a digest of everything that determines the scores of a teacher."""
    contents = hashlib.sha256()
    for array in encoded.arrays():
        contents.update(f"{array.dtype} {array.shape}".encode())
        contents.update(np.ascontiguousarray(array).tobytes())
    settings = [to_dict(run.objective), to_dict(run.compression.teacher), run.data.sequence_length, run.data.pack]
    return seals.digest([teacher, contents.hexdigest(), *settings, run.data.target_length, top_k])


def _largest(
    objective: Objective, module: nn.Module, top_k: int, *, params: Any, batch: Batch, offsets: jax.Array
) -> tuple[jax.Array, ...]:
    """Return the classes of the largest logits, these logits, their rows in the file and their weights."""
    kind = distributions_of(objective)
    with capture(module.config, params, scores=True) as activations:
        apply(objective, module, LossInputs(params), batch=batch, key=jax.random.key(0), training=False)
    logits = kind.logits(activations.outputs, batch).astype(jnp.float32)
    values, classes = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))
    return classes, values, score_rows(objective, batch, offsets), kind.weights(batch)


def read(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file, offsets as int32.

    Raises:
        UserError: there is no such file, or it has another format.
    """
    path = storage.path(path)
    try:
        with path.open("rb") as file:
            found = dict(np.load(file, allow_pickle=False))
        return {name: found[name].astype(dtype) for name, dtype in _DTYPES.items()}
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"Expected the scores of a teacher in {path}, found {type(error).__name__}; run plmjax compress distil "
            f"again."
        ) from None


_DTYPES = {"classes": np.int32, "logits": np.float32, "offsets": np.int32}
