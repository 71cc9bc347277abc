"""GPT-2 small's training step, ours and PyTorch transformers', alternately on the CPU.

    python benchmarks/gpt2_step.py [--layers 12] [--repeats 5]

Batch 4, length 128, every token told, float32, dropout 0.1, clipping by the global norm, AdamW.
"""

import argparse

from beside_pytorch import Step, compare, plmjax_step

ROWS, LENGTH, VOCABULARY = 4, 128, 50257


def ours(layers: int) -> Step:
    """Forward, backward, update."""
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
    """The same arithmetic with transformers' modules and torch's fused AdamW."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_layer=layers)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    torch.manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH))

    def take() -> float:
        loss = model(ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return take


def main() -> None:
    """Alternates the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    compare(ours, theirs, arguments.layers, arguments.repeats)


if __name__ == "__main__":
    main()
