"""The training data of a checkpoint's run, on which a compression measures the model."""

from plmjax.compression.run import Source
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.files import storage
from plmjax.finetuning.inputs import task_source
from plmjax.training.feed import BatchSource


def examples_of(source: Source, run: Experiment) -> BatchSource:
    """Return the examples of a run on a task, or the rows of a pretraining.

    Raises:
        UserError: the data is not where the run names it.
    """
    tokenizer = source.description.load_tokenizer()
    if not isinstance(run.data, Data):
        return task_source(run, run.data.read("train"), run.data.read("validation"), tokenizer)
    from plmjax.data import mixture, remote

    layout, vocabulary, seed = run.data.layout, tokenizer.vocabulary, run.training.seed
    if run.data.mixture.sources:
        datasets = mixture.open_sources(run.data.mixture, run.data.cache_bytes, run.model.vocab_size)
        for dataset in datasets.values():
            dataset.check_tokenizer(
                tokenizer.fingerprint, "the checkpoint's", "name others with --data.mixture.sources"
            )
        return mixture.new_source(
            layout, run.data.mixture, datasets, vocabulary=vocabulary, seed=seed, window=run.data.shuffle_window
        )
    folder = storage.path(source.dataset(run))
    if not folder.exists():
        raise UserError(f"Expected the run's dataset at {folder}, found none; name one with --data.path.")
    data = run.data
    dataset = remote.open_dataset(folder, data.cache_bytes, vocab_size=run.model.vocab_size)
    dataset.check_tokenizer(tokenizer.fingerprint, "the checkpoint's", "name another with --data.path")
    return remote.source(layout, dataset, vocabulary, seed=seed, window=data.shuffle_window)
