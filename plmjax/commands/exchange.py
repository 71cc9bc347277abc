"""The commands that take a checkpoint from another library, and to one."""

from typing import Literal

from tyro.conf import Positional

from plmjax.command_line import Location
from plmjax.commands.arguments import Reference, load_classes
from plmjax.errors import UserError


def import_(
    source: Positional[Location],
    checkpoint: Positional[Location],
    architecture: str = "auto",
    tokenizer: Location | None = None,
) -> None:
    """Makes a run directory from a checkpoint of transformers, Google's BERT, ELMo or fastai, or from word vectors.

    Args:
        source: Folder with config.json and model.safetensors or pytorch_model.bin, with bert_model.ckpt, or with ELMo's
            options.json and an .hdf5 file; fastai's AWD-LSTM, a .pth file, with --tokenizer; or a file of word vectors,
            of word2vec or GloVe.
        checkpoint: Run directory to make.
        architecture: Class of transformers to read; auto takes the one that the folder names.
        tokenizer: Folder of the tokenizer, where it is not the source's own.
    """
    from plmjax.exchange.word_vectors import import_vectors, is_file_of_vectors

    if is_file_of_vectors(source):
        if architecture != "auto" or tokenizer is not None:
            raise UserError(
                f"Expected neither --architecture nor --tokenizer for {source}, found one; leave it out, as word "
                "vectors bring their own words."
            )
        print(import_vectors(source, checkpoint))
        return
    from plmjax.exchange.run_directories import import_checkpoint

    print(import_checkpoint(source, checkpoint, architecture, tokenizer))


def export(
    checkpoint: Positional[Location],
    output: Positional[Location],
    architecture: str = "auto",
    vectors: Literal["text", "binary", "glove"] | None = None,
    experiment: Reference | None = None,
) -> None:
    """Writes a checkpoint as transformers does, ELMo and AWD-LSTM in files of their own, or vectors of words alone.

    Args:
        checkpoint: Run directory or checkpoint; with --vectors also a file of word vectors.
        output: Folder to write; with --vectors a file.
        architecture: Class of transformers to write for; auto chooses the one that has all parameters.
        vectors: Write the vectors of the words alone, in word2vec's text or binary form or in GloVe's.
        experiment: Experiment file that defines classes which the checkpoint uses.
    """
    load_classes(experiment)
    if vectors is not None:
        if architecture != "auto":
            raise UserError(f"Expected no --architecture with --vectors, found {architecture}; leave one of them out.")
        from plmjax.word_vectors.vectors import export as export_vectors

        print(export_vectors(checkpoint, output, vectors))
        return
    from plmjax.exchange.run_directories import export_checkpoint

    print(export_checkpoint(checkpoint, output, architecture))
