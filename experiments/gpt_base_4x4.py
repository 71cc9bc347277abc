"""GPT as published (Radford et al. 2018, section 4.1), on a 4x4 slice of 16 chips.

    plmjax pretrain experiments/gpt_base_4x4.py --data.input BOOKS
    plmjax plan experiments/gpt_base_4x4.py --topology v2:4x4

Recipe: 100 epochs of BooksCorpus in batches of 64 rows of 512 tokens; Adam at 2.5e-4 with 2,000 steps of warm-up, then
a cosine to 0; decoupled decay of 0.01 on all but biases and gains; dropout 0.1; lower-cased BPE of 40,000 merges. The
user provides the text; the paper used 7,000 unpublished books, 800 million words. 100 epochs of a billion tokens are
three million steps; with other text set `training.steps` to 100 times its tokens over 32,768.

Plan for v2:4x4 (libtpu 0.0.52, jax 0.10.2), estimated, not measured: a step of 73 ms (65 to 70 refined, roofline 34
ms), MFU 46 % (48 to 51 refined), 0.9 GiB of the 8 of a core; 60.5 hours and 968 chip-hours for the whole run.
Result to expect: perplexity 18.4 on BooksCorpus, and 82.1 % on MNLI's matched test set after fine-tuning (the paper).
This run was planned, but not made.

Deviations: gradients are clipped at 1, as in the released fine-tuning, because the paper does not mention it for
pretraining; rows are cut from the documents joined, with [SEP] between them, and a tokenizer is trained on the text
unless `--tokenizer.path` names the published vocabulary, which has no such token; activations are bfloat16 over float32
parameters; half a percent of the documents is held out for evaluation.
"""

from plmjax.data.layouts import Chunks
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.models.gpt import GptConfig
from plmjax.objectives.next_token import NextToken
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Cosine


def experiment() -> Experiment:
    """117 million parameters on 16 chips."""
    return Experiment(
        model=GptConfig.base(pad_token_id=0),
        objective=NextToken(),
        tokenizer=Tokenizer(kind="bpe", vocab_size=40478),
        data=Data(layout=Chunks(), sequence_length=512, held_out=0.005),
        optimizer=AdamW(learning_rate=2.5e-4, schedule=Cosine(warmup_steps=2_000), epsilon=1e-8, clip_norm=1.0),
        training=Training(steps=3_000_000, batch_size=64, log_every=100, evaluate_every=10_000, evaluation_batches=20),
        checkpoint=Checkpoint(every=50_000),
    )
