"""From BERT to ModernBERT, a change at a time, on the same text and with the same FLOPs.

    python benchmarks/bert_to_modernbert.py DATA

makes all runs with three seeds and writes docs/results/bert_to_modernbert.md. Each function is one run, with one change
more than the function before it:

    plmjax pretrain experiments/bert_to_modernbert.py:rotary --data.input TEXT

The encoder of this file is the subject of the experiment, so it has a switch for each change of the network. The models
of plmjax have none: BERT's encoder is models/bert.py, and ModernBERT's is models/modernbert/.

All have four layers of width 128, rows of 128 tokens and the tokenizer of experiments/modernbert_tiny.py;
evaluations predict 15 % of the tokens in every run, so their losses can be compared.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax import experiment as experiments
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms, Window
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.experiment import Experiment, Training
from plmjax.layers.attention.multi_head import MultiHeadAttention
from plmjax.layers.attention.rotary import RotaryAttention, Rotation
from plmjax.layers.feed_forward import FeedForward, GatedFeedForward
from plmjax.layers.tokens import gather_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.encoder import EncoderOutput
from plmjax.models.modernbert.encoder import GLOBAL
from plmjax.models.modernbert.heads import MaskedLanguageModelHead
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.training.optimizers import AdamW, Muon, StableAdamW
from plmjax.training.optimizers.schedules import Linear, WarmupStableDecay


@dataclasses.dataclass(frozen=True)
class StepsConfig(ModernBertConfig):
    """Sizes of the encoder, and the changes that it has."""

    rotary: bool = True
    """True for rotary positions, False for a table of learned positions."""
    norm_first: bool = True
    """True if sublayers read the normalised sum, False if their sum is normalised."""
    gated: bool = True
    """True for a gated feed-forward network."""

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of ModernBERT, minus those of the gate if the config has no gate."""
        gate = 0 if self.gated else self.hidden_size * self.intermediate_size * self.num_hidden_layers
        return super().train_flops(batch_size, sequence_length, predictions) - 6.0 * batch_size * sequence_length * gate


class Layer(nn.Module):
    """Attention and a feed-forward network, as BERT or ModernBERT has them."""

    config: StepsConfig
    execution: Execution

    @nn.compact
    def __call__(self, x: jax.Array, rotation: Rotation, mask_terms: MaskTerms, deterministic: bool) -> jax.Array:
        """Map [B T D] to [B T D]."""
        config, execution = self.config, self.execution
        made = {"kernel_init": config.initializer, "output_init": config.output_initializer, "execution": execution}
        sizes = config.hidden_size, config.num_attention_heads, config.attention_dropout
        settings = {"use_bias": config.attention_bias, "name": "attention"}
        attention = (RotaryAttention if config.rotary else MultiHeadAttention)(*sizes, **made, **settings)
        network = GatedFeedForward if config.gated else FeedForward
        feed_forward = network(
            config.intermediate_size, config.hidden_activation, **made, use_bias=config.mlp_bias, name="feed_forward"
        )

        def attend(y: jax.Array) -> jax.Array:
            if not config.rotary:
                return attention(y, y, mask_terms, deterministic=deterministic)
            keys = attention.rotated_key_values(y, rotation)
            return attention.attend_rotated(y, rotation, keys, mask_terms, deterministic=deterministic)

        for name, sublayer in (("attention_norm", attend), ("feed_forward_norm", feed_forward)):
            norm = config.norm_of(execution, name)
            x = x + sublayer(norm(x)) if config.norm_first else norm(x + sublayer(x))
        return x


class Encoder(nn.Module):
    """Words, positions if they are learned, and the layers."""

    config: StepsConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config = self.config
        sizes = config.hidden_size, config.initializer, self.execution.dtype
        self.word_embeddings = Embedding(config.vocab_size, sizes[0], "vocab", *sizes[1:])
        if not config.rotary:
            self.position_embeddings = Embedding(config.max_position_embeddings, sizes[0], None, *sizes[1:])

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        *,
        deterministic: bool = True,
    ) -> EncoderOutput:
        """Encode rows of tokens [B T]; the arguments are those of ModernBertModel."""
        config = self.config
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
        whole, half = MaskTerms.of_rows(attention_mask, segment_ids), config.local_attention // 2
        x = self.word_embeddings(input_ids)
        if not config.rotary:
            x = x + self.position_embeddings(positions)
        x = config.norm_of(self.execution, "embedding_norm")(x)
        for number, kind in enumerate(config.layer_kinds):
            rotation = Rotation.of(positions, config.head_size, config.theta(kind))
            mask_terms = whole if kind == GLOBAL else whole.also(Window(half, half))
            x = Layer(config, self.execution, name=f"layer_{number}")(x, rotation, mask_terms, deterministic)
        return EncoderOutput(config.norm_of(self.execution, "final_norm")(x) if config.norm_first else x)


class MaskedLanguageModel(nn.Module):
    """The encoder with ModernBERT's head."""

    config: StepsConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        self.steps = Encoder(self.config, self.execution)
        self.head = MaskedLanguageModelHead(self.config, self.execution)

    def __call__(
        self, input_ids: jax.Array, *, masked_positions: jax.Array | None = None, **inputs: jax.Array | bool
    ) -> EncoderOutput:
        """Return logits [B P V] at `masked_positions` [B P], or of all tokens."""
        outputs = self.steps(input_ids, **inputs)
        x = outputs.last_hidden_state
        x = x if masked_positions is None else gather_tokens(x, masked_positions)
        return outputs.replace(logits=self.head(x, self.steps.word_embeddings))


SYSTEM = declare(
    System(
        StepsConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: MaskedLanguageModel,
            Purpose.MASKED_TOKENS: MaskedLanguageModel,
            Purpose.ENCODING: Encoder,
        },
        name="steps",
        template=lambda config: Template(pair="cls A sep B sep"),
        parts=lambda config: (ParameterGroup(("steps",)),),
        token_table="steps/word_embeddings/embedding",
    )
)


def _changed(run: Experiment, **model: object) -> Experiment:
    return dataclasses.replace(run, model=dataclasses.replace(run.model, **model))


def bert() -> Experiment:
    """BERT's network, masks, schedule and optimizer."""
    run = experiments.load("modernbert_tiny")
    model = StepsConfig.tiny(
        vocab_size=4096,
        num_attention_heads=4,
        max_position_embeddings=128,
        local_attention=32,
        global_rope_theta=10_000.0,
        initializer_range=0.05,
        attention_output_dropout=0.0,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        intermediate_size=512,
        global_attn_every_n_layers=1,
        rotary=False,
        norm_first=False,
        gated=False,
        norm_bias=True,
        attention_bias=True,
        mlp_bias=True,
    )
    return dataclasses.replace(
        run,
        model=model,
        objective=RobertaPretraining(rate=0.15),
        optimizer=AdamW(learning_rate=1e-3, schedule=Linear(warmup_steps=100), weight_decay=0.01),
        training=Training(steps=2000, batch_size=8, log_every=100, evaluate_every=2000, evaluation_batches=0),
    )


def rotary() -> Experiment:
    """Rotary positions in place of learned ones."""
    return _changed(bert(), rotary=True)


def norm() -> Experiment:
    """Norms before the sublayers, and no biases."""
    return _changed(rotary(), norm_first=True, norm_bias=False, attention_bias=False, mlp_bias=False)


def gate() -> Experiment:
    """GeGLU of nearly as many parameters in place of GELU."""
    return _changed(norm(), gated=True, intermediate_size=344)


def window() -> Experiment:
    """Windows of 32 tokens in two of three layers."""
    return _changed(gate(), global_attn_every_n_layers=3)


def masks() -> Experiment:
    """30 % of the tokens masked in training."""
    return dataclasses.replace(window(), objective=RobertaPretraining(rate=0.3, evaluation_rate=0.15))


def schedule() -> Experiment:
    """A constant rate that decays in the last fifth by 1 - sqrt."""
    run = masks()
    decay = WarmupStableDecay(warmup_steps=100, decay_fraction=0.2, shape="one_minus_sqrt", floor=0.001)
    return dataclasses.replace(run, optimizer=dataclasses.replace(run.optimizer, schedule=decay))


def optimizer() -> Experiment:
    """StableAdamW, with fully decoupled decay and no clipping of gradients."""
    run = schedule()
    return dataclasses.replace(run, optimizer=StableAdamW(learning_rate=1e-3, schedule=run.optimizer.schedule))


def muon() -> Experiment:
    """Muon in place of StableAdamW; not a part of ModernBERT."""
    run = schedule()
    return dataclasses.replace(run, optimizer=Muon(learning_rate=1e-3, schedule=run.optimizer.schedule, beta2=0.98))
