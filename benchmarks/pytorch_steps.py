"""The training steps of PyTorch and transformers that steps.py measures."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

from plmjax.models.awd_lstm import AwdLstmConfig

Take = Callable[[int], None]
"""Takes a number of steps and waits for the last one."""


def adamw(model: torch.nn.Module, loss: Callable[[], torch.Tensor], gpu: bool = False) -> Take:
    """Return the steps of a loss: clipping by the global norm, fused AdamW; torch.compile and autocast on a GPU."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    loss = torch.compile(loss) if gpu else loss

    def take(count: int) -> None:
        for _ in range(count):
            with torch.autocast("cuda", dtype=torch.bfloat16) if gpu else nullcontext():
                found = loss()
            found.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if gpu:
            torch.cuda.synchronize()

    return take


def bert(
    layers: int, rows: int, length: int, *, predictions: int, width: int = 768, dropout: float = 0.1, gpu: bool = False
) -> Take:
    """Return BERT's steps, with logits at the masked positions only. dropout: that of attention."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if gpu else "highest")
    device = "cuda" if gpu else "cpu"
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        hidden_act="gelu_new",
        attention_probs_dropout_prob=dropout,
    )
    model = BertForPreTraining(config).to(device)
    ids = torch.randint(5, config.vocab_size, (rows, length), device=device)
    labels = torch.zeros(rows, dtype=torch.long, device=device)
    numbers = torch.arange(rows, device=device)[:, None]

    def loss() -> torch.Tensor:
        chosen = torch.rand(rows, length, device=device).argsort(1)[:, :predictions]
        encoded = model.bert(ids.scatter(1, chosen, 4))
        logits, relation = model.cls(encoded.last_hidden_state[numbers, chosen], encoded.pooler_output)
        words = functional.cross_entropy(logits.flatten(0, 1).float(), ids[numbers, chosen].flatten())
        return words + functional.cross_entropy(relation.float(), labels)

    return adamw(model, loss, gpu)


def modernbert(
    layers: int, rows: int, length: int, *, predictions: int, dropout: float = 0.0, gpu: bool = False
) -> Take:
    """Return ModernBERT's steps, with logits at the masked positions only.

    dropout: that of attention and of its output, which transformers cannot tell apart.
    """
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if gpu else "highest")
    device = "cuda" if gpu else "cpu"
    config = ModernBertConfig(num_hidden_layers=layers, attention_dropout=dropout, attn_implementation="sdpa")
    model = ModernBertForMaskedLM(config).to(device)
    ids = torch.randint(5, config.vocab_size, (rows, length), device=device)
    numbers = torch.arange(rows, device=device)[:, None]

    def loss() -> torch.Tensor:
        chosen = torch.rand(rows, length, device=device).argsort(1)[:, :predictions]
        encoded = model.model(ids.scatter(1, chosen, 4)).last_hidden_state
        logits = model.decoder(model.head(encoded[numbers, chosen]))
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids[numbers, chosen].flatten())

    return adamw(model, loss, gpu)


def gpt2(layers: int, rows: int, length: int, *, dropout: float = 0.1, gpu: bool = False) -> Take:
    """Return GPT-2's steps, which predict every token. dropout: that of attention."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if gpu else "highest")
    device = "cuda" if gpu else "cpu"
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, attn_pdrop=dropout, use_cache=False)).to(device)
    ids = torch.randint(5, model.config.vocab_size, (rows, length), device=device)
    return adamw(model, lambda: model(ids, labels=ids).loss, gpu)


def t5(layers: int, rows: int, source: int, target: int) -> Take:
    """Return T5-small's steps on sources and targets of these lengths."""
    torch.manual_seed(0)
    config = T5Config(vocab_size=32128, num_layers=layers, num_decoder_layers=layers, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    ids, labels = (torch.randint(5, config.vocab_size, (rows, length)) for length in (source, target))
    return adamw(model, lambda: model(ids, labels=labels).loss)


def awd_lstm(layers: int, rows: int, length: int) -> Take:
    """Return AWD-LSTM's steps with one torch.nn.LSTM per layer, which cannot drop recurrent weights."""
    config = AwdLstmConfig.wikitext2(num_layers=layers)
    torch.manual_seed(0)
    words = torch.nn.Embedding(config.vocab_size, config.embedding_size)
    torch.nn.init.uniform_(words.weight, -config.initializer_range, config.initializer_range)
    inputs = (config.embedding_size, *config.layer_sizes[:-1])
    lstms = torch.nn.ModuleList(map(torch.nn.LSTM, inputs, config.layer_sizes))
    bias = torch.nn.Parameter(torch.zeros(config.vocab_size))
    parameters = [*words.parameters(), *lstms.parameters(), bias]
    optimizer = torch.optim.SGD(parameters, lr=1.0, weight_decay=1.2e-6)
    ids = torch.randint(5, config.vocab_size, (length + 1, rows))
    states: list = [None] * layers

    def locked(x: torch.Tensor, rate: float) -> torch.Tensor:
        return x * functional.dropout(torch.ones_like(x[:1]), rate)

    def loss() -> torch.Tensor:
        table = words.weight * functional.dropout(torch.ones(config.vocab_size, 1), config.embedding_dropout)
        x = locked(functional.embedding(ids[:-1], table), config.input_dropout)
        for number, lstm in enumerate(lstms):
            x = locked(x, config.hidden_dropout) if number else x
            x, state = lstm(x, states[number])
            states[number] = tuple(part.detach() for part in state)
        dropped = locked(x, config.output_dropout)
        scores = functional.linear(dropped, words.weight, bias)
        penalties = 2 * dropped.square().mean() + (x[1:] - x[:-1]).square().mean()
        return functional.cross_entropy(scores.flatten(0, 1), ids[1:].flatten()) + penalties

    def take(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            loss().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.25)
            optimizer.step()

    return take
