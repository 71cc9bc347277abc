"""Encoders of Base's size beside BERT: the refined estimate of a step of masked language modelling on one TPU chip.

    python benchmarks/planned_encoders.py [--encoders bert deberta modernbert] [--length 512] [--topology v5e:1x1]

Every encoder has its published sizes and dropout, but BERT's table of 30,522 tokens, so that the layers are compared. A
step has 8,192 tokens, of which 15 % are predicted, and AdamW. Nothing is run: the schedule of the compiler is counted
(docs/notes/estimates.md). An encoder takes some minutes of one core.
"""

import argparse
import dataclasses
import os

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}

from plmjax.contracts.model_config import ModelConfig
from plmjax.data.layouts import FullSentences
from plmjax.experiment import Data, Experiment, Tokenizer, Training
from plmjax.models.bert import BertConfig
from plmjax.models.deberta.deberta import DebertaConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.planning.plan import plan
from plmjax.training.optimizers import AdamW

VOCABULARY, TOKENS = 30_522, 8_192
ENCODERS: dict[str, ModelConfig] = {
    "bert": BertConfig.base(),
    "deberta": DebertaConfig.base(vocab_size=VOCABULARY),
    "modernbert": ModernBertConfig.base(vocab_size=VOCABULARY),
}


def experiment(model: ModelConfig, length: int) -> Experiment:
    """Return a run with one batch of `TOKENS` tokens a step."""
    if isinstance(model, BertConfig) and length > model.max_position_embeddings:
        model = dataclasses.replace(model, max_position_embeddings=length)
    return Experiment(
        model=model,
        objective=MaskedLanguageModel(),
        tokenizer=Tokenizer(vocab_size=VOCABULARY),
        data=Data(layout=FullSentences(), sequence_length=length),
        optimizer=AdamW(),
        training=Training(steps=1000, batch_size=TOKENS // length),
    )


def main() -> None:
    """Print a row for each encoder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS, default=list(ENCODERS))
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--topology", default="v5e:1x1")
    options = parser.parse_args()
    print("| encoder | parameters | rows | ms a step | MFU | times the first |\n|---|---|---|---|---|---|", flush=True)
    first = None
    for name in options.encoders:
        made = plan(experiment(ENCODERS[name], options.length), options.topology)
        refined = made["phases"][0]["refined"]
        fast, slow = (1e3 * refined[end]["step_seconds"] for end in ("fast", "slow"))
        first = first or (fast, slow)
        print(
            f"| {name} | {made['parameters']:,} | {TOKENS // options.length} x {options.length:,} "
            f"| {fast:.1f} to {slow:.1f} "
            f"| {100 * refined['slow']['mfu']:.0f} to {100 * refined['fast']['mfu']:.0f} % "
            f"| {fast / first[0]:.2f} to {slow / first[1]:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
