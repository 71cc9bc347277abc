"""T5-small's training step beside that of PyTorch transformers, alternately on the CPU.

    python benchmarks/t5_step.py [--layers 6] [--repeats 5]

Batch 8, sources of 128 tokens and targets of 29, made from rows of 141 by span corruption, float32, dropout 0.1,
clipping by the global norm, AdamW. Ours corrupts its rows anew in every step; PyTorch receives sources and targets.
"""

from pytorch_comparison import Step, main, plmjax_step, pytorch_step

ROWS, SOURCE, VOCABULARY = 8, 128, 32128


def ours(layers: int) -> Step:
    """Return our step: corruption, forward, backward, update."""
    from plmjax.data.layouts import Blocks
    from plmjax.experiment import Data, Experiment, Training
    from plmjax.models.t5 import T5Config
    from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
    from plmjax.training.optimizers import AdamW

    return plmjax_step(
        Experiment(
            model=T5Config.small(num_layers=layers, num_decoder_layers=layers),
            objective=SpanCorruption(),
            data=Data(Blocks(), sequence_length=SpanCorruption().row_length(SOURCE)),
            optimizer=AdamW(),
            training=Training(batch_size=ROWS, steps=1000),
        )
    )


def theirs(layers: int) -> Step:
    """Return a step with the same arithmetic, transformers' modules and torch's fused AdamW."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from plmjax.objectives.text_to_text.span_corruption import SpanCorruption

    source, target = SpanCorruption().lengths(SpanCorruption().row_length(SOURCE))
    config = T5Config(vocab_size=VOCABULARY, num_layers=layers, num_decoder_layers=layers, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    torch.manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (ROWS, source))
    labels = torch.randint(5, VOCABULARY, (ROWS, target))
    return pytorch_step(model, lambda: model(ids, labels=labels).loss)


if __name__ == "__main__":
    main(__doc__, ours, theirs, layers=6)
