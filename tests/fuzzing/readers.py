"""The table of all readers of files that others may have made."""

from tests.fuzzing.models import CHECKPOINTS, TOKENIZERS, VECTORS
from tests.fuzzing.runs import RUNS
from tests.fuzzing.texts import LISTS, RAW, TASKS

READERS = [*TOKENIZERS, *CHECKPOINTS, *VECTORS, *RUNS, *TASKS, *RAW, *LISTS]
"""Every one of them with its sample."""

assert len({reader.name for reader in READERS}) == len(READERS), "two readers have one name"
