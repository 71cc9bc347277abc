"""BERT-Base's training step beside that of PyTorch transformers, alternately on the CPU.

    python benchmarks/bert_step.py [--layers 12] [--repeats 5]

Batch 4, length 128, 20 masked positions per row, float32, dropout 0.1, clipping by the global norm, AdamW. Both compute
logits only at the masked positions.
"""

from pytorch_comparison import Step, main, plmjax_step, pytorch_step

ROWS, LENGTH, PREDICTIONS, VOCABULARY = 4, 128, 20, 30522


def ours(layers: int) -> Step:
    """Return our step: masking, forward, backward, update."""
    from plmjax.data.layouts import SentencePairs
    from plmjax.experiment import Data, Experiment, Training
    from plmjax.models.bert import BertConfig
    from plmjax.objectives.bert import BertPretraining
    from plmjax.training.optimizers import BertAdamW

    return plmjax_step(
        Experiment(
            model=BertConfig.base(num_hidden_layers=layers),
            objective=BertPretraining(max_predictions=PREDICTIONS),
            data=Data(SentencePairs(), sequence_length=LENGTH),
            optimizer=BertAdamW(),
            training=Training(batch_size=ROWS, steps=1000),
        )
    )


def theirs(layers: int) -> Step:
    """Return a step with the same arithmetic, transformers' modules and torch's fused AdamW."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, hidden_act="gelu_new")
    model = BertForPreTraining(config)
    torch.manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH))
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    labels = torch.zeros(ROWS, dtype=torch.long)
    rows = torch.arange(ROWS)[:, None]

    def loss() -> torch.Tensor:
        chosen = torch.rand(ROWS, LENGTH).argsort(1)[:, :PREDICTIONS]
        targets = ids[rows, chosen]
        shown = ids.clone()
        shown[rows, chosen] = 4
        encoded = model.bert(shown, attention_mask=mask, token_type_ids=types)
        logits, relation = model.cls(encoded.last_hidden_state[rows, chosen], encoded.pooler_output)
        return cross_entropy(logits.flatten(0, 1), targets.flatten()) + cross_entropy(relation, labels)

    return pytorch_step(model, loss)


if __name__ == "__main__":
    main(__doc__, ours, theirs, layers=12)
