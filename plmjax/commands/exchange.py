"""The commands that import a checkpoint from another library, and export one to it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from plmjax.commands.arguments import Reference, Run, default, load_classes
from plmjax.commands.command_line import Location
from plmjax.errors import UserError


def import_(
    source: Positional[Annotated[Location, arg(metavar="SOURCE")]],
    checkpoint: Positional[Run],
    architecture: str = "auto",
    tokenizer: Annotated[Location | None, default("SOURCE")] = None,
) -> None:
    """Import a checkpoint of another library as a run directory.

    The libraries are transformers, Google's BERT, fairseq, ELMo and fastai; word vectors are imported too.

    Args:
        source: Folder with config.json and model.safetensors or pytorch_model.bin, with bert_model.ckpt, with fairseq's
            dict.txt and a .pt file, or with ELMo's options.json and an .hdf5 file; fastai's AWD-LSTM, a .pth file, with
            --tokenizer; or a file of word vectors, of word2vec or GloVe.
        checkpoint: Run directory to write.
        architecture: Class of transformers to read; auto takes the one that the folder names.
        tokenizer: Folder of the tokenizer.
    """
    from plmjax.interop.word_vector_runs import import_vectors, is_file_of_vectors

    if is_file_of_vectors(source):
        if architecture != "auto" or tokenizer is not None:
            raise UserError(
                f"Expected neither --architecture nor --tokenizer for {source}, found one; leave it out, because "
                "word vectors have their own words."
            )
        print(import_vectors(source, checkpoint))
        return
    from plmjax.interop.run_directories import import_checkpoint
    from plmjax.training.metrics import announced

    with announced(f"importing {source}, and checking the result"):
        done = import_checkpoint(source, checkpoint, architecture, tokenizer)
    print(done)


def export(
    checkpoint: Positional[Run],
    output: Positional[Annotated[Location, arg(metavar="FOLDER")]],
    *,
    architecture: str = "auto",
    vectors: Literal["text", "binary", "glove"] | None = None,
    to: Literal["transformers", "sentence-transformers", "jax"] = "transformers",
    pooling: Annotated[Literal["mean", "cls"] | None, default("the model's own recipe, or the mean")] = None,
    normalize: bool = False,
    platforms: Annotated[tuple[str, ...], default("cpu")] = (),
    rows: Annotated[int | None, default(1)] = None,
    length: Annotated[int | None, default("that of the run's rows")] = None,
    experiment: Reference | None = None,
) -> None:
    """Export a checkpoint for another library.

    Args:
        checkpoint: Run directory or checkpoint; with --vectors also a file of word vectors.
        output: Folder to write; with --vectors a file.
        architecture: Class of transformers to write for; auto chooses the one that has all parameters.
        vectors: Write only the word vectors, in the text or binary format of word2vec or in the format of GloVe.
        to: Library that opens the folder. ELMo and AWD-LSTM, which transformers lacks, are written in their own format.
            sentence-transformers takes encoders; jax takes a function of jax.export.
        pooling: For sentence-transformers, the vector of a text: the mean over its tokens, or the hidden
            state of [CLS].
        normalize: For sentence-transformers, vectors of length 1.
        platforms: For jax, where the function can be called: cpu, cuda, rocm or tpu.
        rows: For jax, the number of rows of a call.
        length: For jax, the number of tokens of a row.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    options = {"pooling": pooling, "normalize": normalize or None, "platforms": platforms or None}
    options = {name: value for name, value in (options | {"rows": rows, "length": length}).items() if value is not None}
    _check_options(to, vectors, architecture, options)
    if to == "sentence-transformers":
        from plmjax.interop.sentence_transformers import export_sentence_transformer

        print(export_sentence_transformer(checkpoint, output, **options))
        return
    if to == "jax":
        from plmjax.interop.exported_function import export_function

        print(export_function(checkpoint, output, **options))
        return
    if vectors is not None:
        if architecture != "auto":
            raise UserError(f"Expected no --architecture with --vectors, found {architecture}; leave one of them out.")
        from plmjax.interop.word_vectors import export as export_vectors

        print(export_vectors(checkpoint, output, vectors))
        return
    from plmjax.interop.run_directories import export_checkpoint
    from plmjax.training.metrics import announced

    with announced(f"exporting {checkpoint}, and checking the result"):
        done = export_checkpoint(checkpoint, output, architecture)
    print(done)


OPTIONS = {
    "transformers": (),
    "sentence-transformers": ("pooling", "normalize"),
    "jax": ("platforms", "rows", "length"),
}
"""Library -> the options of an export for it."""


def _check_options(to: str, vectors: str | None, architecture: str, options: Mapping[str, Any]) -> None:
    """Raise UserError for an option that does not apply to the library."""
    for name in options:
        if name not in OPTIONS[to]:
            (own,) = (library for library, names in OPTIONS.items() if name in names)
            raise UserError(f"Expected --{name} with --to {own}, found it with --to {to}; leave one of them out.")
    if to != "transformers" and (vectors is not None or architecture != "auto"):
        found = "--vectors" if vectors is not None else "--architecture"
        raise UserError(f"Expected no {found} with --to {to}, found one; leave one of them out.")
