"""GPT-2 small's training step beside that of PyTorch transformers, alternately on the CPU.

    python benchmarks/gpt2_step.py [--layers 12] [--repeats 5]

Batch 4, length 128, every token predicted, float32, dropout 0.1, clipping by the global norm, AdamW.
"""

from pytorch_comparison import Step, main, plmjax_step, pytorch_step

ROWS, LENGTH, VOCABULARY = 4, 128, 50257


def ours(layers: int) -> Step:
    """Return our step: forward, backward, update."""
    from plmjax.data.layouts import Blocks
    from plmjax.experiment import Data, Experiment, Training
    from plmjax.models.gpt2 import Gpt2Config
    from plmjax.objectives.next_token import NextToken
    from plmjax.training.optimizers import AdamW

    return plmjax_step(
        Experiment(
            model=Gpt2Config.small(n_layer=layers),
            objective=NextToken(),
            data=Data(Blocks(), sequence_length=LENGTH),
            optimizer=AdamW(),
            training=Training(batch_size=ROWS, steps=1000),
        )
    )


def theirs(layers: int) -> Step:
    """Return a step with the same arithmetic, transformers' modules and torch's fused AdamW."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_layer=layers))
    torch.manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH))
    return pytorch_step(model, lambda: model(ids, labels=ids).loss)


if __name__ == "__main__":
    main(__doc__, ours, theirs, layers=12)
