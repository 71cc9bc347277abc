"""The commands that import a checkpoint from another library, and export one to it."""

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
    """Import a checkpoint of transformers, Google's BERT, ELMo or fastai, or word vectors, as a run directory.

    Args:
        source: Folder with config.json and model.safetensors or pytorch_model.bin, with bert_model.ckpt, or with ELMo's
            options.json and an .hdf5 file; fastai's AWD-LSTM, a .pth file, with --tokenizer; or a file of word vectors,
            of word2vec or GloVe.
        checkpoint: Run directory to write.
        architecture: Class of transformers to read; auto takes the one that the folder names.
        tokenizer: Folder of the tokenizer, if it is not the source folder.
    """
    from plmjax.exchange.word_vectors import import_vectors, is_file_of_vectors

    if is_file_of_vectors(source):
        if architecture != "auto" or tokenizer is not None:
            raise UserError(
                f"Expected neither --architecture nor --tokenizer for {source}, found one; leave it out, because "
                "word vectors have their own words."
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
    """Export a checkpoint in the format of transformers, of ELMo or of AWD-LSTM, or export word vectors only.

    Args:
        checkpoint: Run directory or checkpoint; with --vectors also a file of word vectors.
        output: Folder to write; with --vectors a file.
        architecture: Class of transformers to write for; auto chooses the one that has all parameters.
        vectors: Write only the word vectors, in the text or binary format of word2vec or in the format of GloVe.
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
