"""AWD-LSTM's training step beside one of torch.nn.LSTM, alternately on the CPU.

    python benchmarks/awd_lstm_step.py [--layers 3] [--repeats 5]

Sizes of WikiText-2, 20 rows of 35 tokens, float32, carried states, both penalties, clipping by the global norm, plain
gradients. Embedding, input, hidden and output dropout on both sides. Ours also drops recurrent weights, which
torch.nn.LSTM cannot do.
"""

from pytorch_comparison import Step, main, plmjax_step

ROWS, LENGTH = 20, 35


def ours(layers: int) -> Step:
    """Return our step: forward, backward, update."""
    from plmjax.data.layouts import Streams
    from plmjax.experiment import Data, Experiment, Training
    from plmjax.models.awd_lstm import AwdLstmConfig
    from plmjax.objectives.awd_lstm import AwdLstmPretraining
    from plmjax.training.optimizers import StochasticGradientDescent

    return plmjax_step(
        Experiment(
            model=AwdLstmConfig.wikitext2(num_layers=layers),
            objective=AwdLstmPretraining(),
            data=Data(Streams(), sequence_length=LENGTH),
            optimizer=StochasticGradientDescent(learning_rate=1.0, clip_norm=0.25, weight_decay=1.2e-6),
            training=Training(batch_size=ROWS, steps=1000),
        )
    )


def theirs(layers: int) -> Step:
    """Return a step with the same arithmetic and one torch.nn.LSTM per layer."""
    import torch
    from torch.nn import functional

    from plmjax.models.awd_lstm import AwdLstmConfig

    config = AwdLstmConfig.wikitext2(num_layers=layers)
    torch.manual_seed(0)
    words = torch.nn.Embedding(config.vocab_size, config.embedding_size)
    torch.nn.init.uniform_(words.weight, -config.initializer_range, config.initializer_range)
    inputs = (config.embedding_size, *config.layer_sizes[:-1])
    lstms = torch.nn.ModuleList(map(torch.nn.LSTM, inputs, config.layer_sizes))
    bias = torch.nn.Parameter(torch.zeros(config.vocab_size))
    parameters = [*words.parameters(), *lstms.parameters(), bias]
    optimizer = torch.optim.SGD(parameters, lr=1.0, weight_decay=1.2e-6)
    ids = torch.randint(5, config.vocab_size, (LENGTH + 1, ROWS))
    states: list = [None] * layers

    def locked(x: torch.Tensor, rate: float) -> torch.Tensor:
        return x * functional.dropout(torch.ones_like(x[:1]), rate)

    def take() -> float:
        table = words.weight * functional.dropout(torch.ones(config.vocab_size, 1), config.embedding_dropout)
        x = locked(functional.embedding(ids[:-1], table), config.input_dropout)
        for number, lstm in enumerate(lstms):
            x = locked(x, config.hidden_dropout) if number else x
            x, state = lstm(x, states[number])
            states[number] = tuple(part.detach() for part in state)
        dropped = locked(x, config.output_dropout)
        scores = functional.linear(dropped, words.weight, bias)
        loss = functional.cross_entropy(scores.flatten(0, 1), ids[1:].flatten())
        loss = loss + 2 * dropped.square().mean() + (x[1:] - x[:-1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.25)
        optimizer.step()
        return float(loss.detach())

    return take


if __name__ == "__main__":
    main(__doc__, ours, theirs, layers=3)
