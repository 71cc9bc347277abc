"""The runs that the core is tested with: every model family and the strangers, so small that a step takes milliseconds.

tests/families says which of them are held to what every step must do.
"""

import dataclasses
from typing import Any

from plmjax.data import layouts
from plmjax.experiment import Checkpoint, Data, Experiment, Tokenizer, Training
from plmjax.finetuning.cross_view.cross_view import (
    CrossViewLearning,
    ParsingTask,
    TaggingTask,
    TasksWithText,
    TranslationTask,
)
from plmjax.finetuning.cross_view.tasks import CrossViewParsing, CrossViewTagging
from plmjax.finetuning.cross_view.translation import CrossViewTranslation
from plmjax.finetuning.tasks.crf_tagging import CrfTagging
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.finetuning.tasks.tagging import Tagging
from plmjax.models.adaptive_span import AdaptiveSpanConfig
from plmjax.models.albert import AlbertConfig
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig
from plmjax.models.cove.cove import CoveConfig
from plmjax.models.cvt.cvt import CvtConfig
from plmjax.models.deberta.deberta import DebertaConfig
from plmjax.models.distilbert import DistilBertConfig
from plmjax.models.electra import ElectraConfig
from plmjax.models.elmo import ElmoConfig
from plmjax.models.glove import GloveConfig
from plmjax.models.gpt import GptConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.lite_transformer.decoder import LiteTransformerDecoderConfig
from plmjax.models.lite_transformer.lite_transformer import LiteTransformerConfig
from plmjax.models.longformer.decoder import LongformerDecoderConfig
from plmjax.models.longformer.encoder_decoder import LedConfig
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.models.mobilebert import TEACHER, MobileBertConfig
from plmjax.models.modernbert.decoder import ModernBertDecoderConfig
from plmjax.models.modernbert.eurobert import EuroBertConfig
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.models.modernbert.neobert import NeoBertConfig
from plmjax.models.nnlm import NnlmConfig
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.models.roberta import RobertaConfig
from plmjax.models.t5 import T5Config
from plmjax.models.taglm import TaglmConfig
from plmjax.models.transformer import TransformerConfig
from plmjax.models.transformer_xl import TransformerXlConfig
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.models.word2vec import ContinuousBagOfWords, Word2VecConfig
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.adaptive_span import AdaptiveSpanPretraining
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.objectives.deberta import DebertaPretraining
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.hierarchical_softmax import HierarchicalSoftmax
from plmjax.objectives.longformer import LongformerDecoderPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.objectives.transformer_xl import TransformerXlPretraining
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from plmjax.training.optimizers import BertAdamW
from plmjax.training.optimizers.schedules import Linear
from tests.third_party.recurrent import NextTokenOfStream, RecurrentConfig
from tests.third_party.windowed import WindowedConfig

TRAINING = Training(steps=8, batch_size=16, log_every=2, unroll=1)
OPTIMIZER = BertAdamW(learning_rate=1e-2, schedule=Linear(warmup_steps=2))
CHECKPOINT = Checkpoint(every=4, minutes=0)


def shared(config: type, run: Experiment) -> dict[str, Any]:
    """The fields of a run's model that another class of configs has too."""
    kept = {field.name for field in dataclasses.fields(config)}
    return {name: value for name, value in dataclasses.asdict(run.model).items() if name in kept}


def bert() -> Experiment:
    """Two sentence pairs a row."""
    model = BertConfig(64, 16, 2, 2, 32, max_position_embeddings=32)
    data = Data(layout=layouts.SentencePairs(pack=2), sequence_length=16)
    return Experiment(model, BertPretraining(), data, optimizer=OPTIMIZER, training=TRAINING, checkpoint=CHECKPOINT)


def albert() -> Experiment:
    """Two pairs a row, in order or swapped, and two trips through one layer."""
    sizes = shared(AlbertConfig, bert())
    sizes["embedding_size"] = 8
    data = Data(layout=layouts.SentenceOrder(pack=2), sequence_length=16)
    return dataclasses.replace(bert(), model=AlbertConfig(**sizes), objective=AlbertPretraining(), data=data)


def electra() -> Experiment:
    """Two texts a row, a generator half as wide as the discriminator, embeddings of a third width."""
    sizes = shared(ElectraConfig, bert()) | {"embedding_size": 12}
    sizes |= {"generator_hidden_size": 8, "generator_num_attention_heads": 2}
    data = Data(layout=layouts.SingleSegment(pack=2), sequence_length=16)
    return dataclasses.replace(bert(), model=ElectraConfig(**sizes), objective=ElectraPretraining(), data=data)


def deberta() -> Experiment:
    """Two texts a row, buckets that several distances share, a generator of two layers."""
    sizes = shared(DebertaConfig, bert()) | {"hidden_act": "gelu", "layer_norm_eps": 1e-7, "type_vocab_size": 0}
    sizes |= {"position_buckets": 8, "generator_num_hidden_layers": 2}
    data = Data(layout=layouts.SingleSegment(pack=2), sequence_length=16)
    return dataclasses.replace(bert(), model=DebertaConfig(**sizes), objective=DebertaPretraining(), data=data)


def roberta() -> Experiment:
    """Full sentences, some rows of them padded; the padding token is the vocabulary's, 0."""
    sizes = {**dataclasses.asdict(bert().model), "hidden_act": "gelu", "layer_norm_eps": 1e-5, "type_vocab_size": 1}
    data = Data(layout=layouts.FullSentences(), sequence_length=16)
    return dataclasses.replace(bert(), model=RobertaConfig(**sizes), objective=RobertaPretraining(), data=data)


def modernbert() -> Experiment:
    """The same rows, in layers of both kinds: layer 0 and one period."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 32, "local_attention": 4, "pad_token_id": 0}
    return dataclasses.replace(roberta(), model=ModernBertConfig(**sizes))


def modernbert_decoder() -> Experiment:
    """Rows of consecutive tokens, in layers of the same kinds."""
    sizes = shared(ModernBertDecoderConfig, modernbert())
    return dataclasses.replace(gpt2(), model=ModernBertDecoderConfig(**sizes))


def eurobert() -> Experiment:
    """The same rows, whose two heads of queries share keys and values; half of the tokens are masked."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "intermediate_size": 32, "max_position_embeddings": 32, "pad_token_id": 0}
    objective = RobertaPretraining(rate=0.5, mask_fraction=1.0, random_fraction=0.0)
    return dataclasses.replace(roberta(), model=EuroBertConfig(**sizes), objective=objective)


def neobert() -> Experiment:
    """The same rows; a fifth of the tokens is masked."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 32, "pad_token_id": 0}
    sizes |= {"initializer_range": 0.1}  # the norm of small embeddings enlarges what their last digits differ by
    objective = RobertaPretraining(rate=0.2, mask_fraction=1.0, random_fraction=0.0)
    return dataclasses.replace(roberta(), model=NeoBertConfig(**sizes), objective=objective)


def distilbert() -> Experiment:
    """The same rows, whose tokens have no types."""
    sizes = shared(DistilBertConfig, bert())
    return dataclasses.replace(roberta(), model=DistilBertConfig(**sizes), objective=MaskedLanguageModel())


def mobilebert() -> Experiment:
    """The pairs of `bert`, behind a bottleneck of half the width, with two feed-forward networks a layer."""
    sizes = shared(MobileBertConfig, bert()) | {"hidden_act": "relu"}
    sizes |= {"embedding_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 2}
    return dataclasses.replace(bert(), model=MobileBertConfig(**sizes))


def ib_bert() -> Experiment:
    """A teacher of `mobilebert`."""
    model = dataclasses.replace(mobilebert().model, intra_bottleneck_size=32, **TEACHER)
    return dataclasses.replace(bert(), model=model)


def longformer() -> Experiment:
    """As `roberta`, with windows of two sizes."""
    sizes = dataclasses.asdict(roberta().model) | {"attention_window": (4, 8), "max_global_tokens": 4}
    return dataclasses.replace(roberta(), model=LongformerConfig(**sizes))


def longformer_decoder() -> Experiment:
    """Rows of consecutive tokens, windows of one size, and two dilated heads."""
    sizes = {"vocab_size": 64, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 32}
    model = LongformerDecoderConfig(**sizes, attention_window=(4,), attention_dilation=(2,), dropout=0.0)
    return dataclasses.replace(gpt2(), model=model, objective=LongformerDecoderPretraining())


def gpt() -> Experiment:
    """Rows of consecutive tokens, for the older model."""
    model = GptConfig(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    return dataclasses.replace(gpt2(), model=model)


def gpt2() -> Experiment:
    """Rows of consecutive tokens."""
    model = Gpt2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2, n_inner=32)
    data = Data(layout=layouts.Chunks(), sequence_length=16)
    return Experiment(model, NextToken(), data, optimizer=OPTIMIZER, training=TRAINING, checkpoint=CHECKPOINT)


def reformer() -> Experiment:
    """Rows of two chunks and more, hashed twice."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_attention_heads": 2, "attention_head_size": 8}
    sizes |= {"feed_forward_size": 32, "axial_pos_shape": (4, 4), "axial_pos_embds_dim": (8, 8), "num_hashes": 2}
    sizes |= {"local_attn_chunk_length": 8, "lsh_attn_chunk_length": 4, "num_buckets": (4,), "eos_token_id": None}
    return dataclasses.replace(gpt2(), model=ReformerConfig(**sizes, attn_layers=("local", "lsh")))


def xlnet() -> Experiment:
    """Rows of a text that goes on and of a pair, half of them backwards, in a random order, with a memory."""
    model = XlnetConfig(vocab_size=64, d_model=16, n_layer=2, n_head=2, d_inner=32)
    data = Data(layout=layouts.ContinuedPairs(), sequence_length=16)
    return dataclasses.replace(gpt2(), model=model, objective=PermutationLanguageModel(memory_length=12), data=data)


def windowed() -> Experiment:
    """As `gpt2`, with a visibility, a score term and scores of its own, and the tokens of words."""
    model = WindowedConfig(**dataclasses.asdict(gpt2().model) | {"eos_token_id": 3})
    return dataclasses.replace(gpt2(), model=model, tokenizer=Tokenizer(kind="word", vocab_size=64))


def transformer() -> Experiment:
    """Two pairs of a source and a target a row; fewer layers write than read."""
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    model = TransformerConfig(vocab_size=64, max_position_embeddings=32, **heads, **sizes)
    data = Data(layout=layouts.PairedStreams(pack=2), sequence_length=16)
    return dataclasses.replace(gpt2(), model=model, objective=SequenceToSequence(label_smoothing=0.1), data=data)


def lite_transformer() -> Experiment:
    """The same pairs; two kernels on one side, one on the other."""
    sizes = shared(LiteTransformerConfig, transformer())
    sizes |= {"cross_attention_heads": 2, "convolution_heads": 2}
    model = LiteTransformerConfig(encoder_kernel_sizes=(3, 5), decoder_kernel_sizes=(4,), **sizes)
    return dataclasses.replace(transformer(), model=model)


def lite_transformer_decoder() -> Experiment:
    """Rows of consecutive tokens, and two kernels."""
    sizes = {"d_model": 16, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
    model = LiteTransformerDecoderConfig(
        vocab_size=64, max_position_embeddings=32, decoder_kernel_sizes=(3, 4), convolution_heads=2, **sizes
    )
    return dataclasses.replace(gpt2(), model=model.with_dropout(0.1))


def bart() -> Experiment:
    """Rows of full sentences, some of them padded, which noise spoils."""
    sizes = shared(BartConfig, transformer())
    return dataclasses.replace(roberta(), model=BartConfig(**sizes), objective=Denoising())


def led() -> Experiment:
    """As `bart`, with windows in the encoder, and shorter targets."""
    sizes = dataclasses.asdict(bart().model) | {"max_decoder_position_embeddings": 24, "max_global_tokens": 4}
    return dataclasses.replace(bart(), model=LedConfig(**sizes | {"attention_window": (4, 8)}))


def t5() -> Experiment:
    """Sources and targets made of rows of text."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2}
    model = T5Config(vocab_size=64, relative_attention_num_buckets=8, relative_attention_max_distance=16, **sizes)
    return dataclasses.replace(gpt2(), model=model, objective=SpanCorruption(z_loss=1e-4))


def recurrent() -> Experiment:
    """Rows that continue from batch to batch."""
    data = Data(layout=layouts.ContiguousStreams(), sequence_length=16)
    return Experiment(
        RecurrentConfig(), NextTokenOfStream(), data, optimizer=OPTIMIZER, training=TRAINING, checkpoint=CHECKPOINT
    )


def nnlm() -> Experiment:
    """Rows of consecutive words, each told by the three before it, with direct connections."""
    sizes = {"vector_size": 8, "hidden_size": 16, "order": 4}
    model = NnlmConfig(vocab_size=64, direct_connections=True, **sizes)
    return dataclasses.replace(gpt2(), model=model, data=Data(layout=layouts.Chunks(overlap=2), sequence_length=16))


def awd_lstm() -> Experiment:
    """Rows that continue from batch to batch, with two penalties on the outputs."""
    model = AwdLstmConfig(vocab_size=64, embedding_size=16, hidden_size=24, num_layers=2).with_dropout(0.1)
    return dataclasses.replace(recurrent(), model=model, objective=AwdLstmPretraining())


def transformer_xl() -> Experiment:
    """Rows that continue from batch to batch behind a memory that is shorter than a row, and a softmax of clusters."""
    sizes = {"d_embed": 16, "d_model": 16, "n_layer": 2, "n_head": 2, "d_head": 8, "d_inner": 32, "mem_len": 12}
    model = TransformerXlConfig(vocab_size=64, cutoffs=(24, 40), div_val=2, **sizes)
    return dataclasses.replace(recurrent(), model=model, objective=TransformerXlPretraining())


def adaptive_span() -> Experiment:
    """The same rows behind a memory as long as the longest span, of which most is masked."""
    sizes = {"vocab_size": 64, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "attn_span": 24, "ramp": 8}
    model = AdaptiveSpanConfig(**sizes, initial_fraction=0.2, dropout=0.1)
    return dataclasses.replace(recurrent(), model=model, objective=AdaptiveSpanPretraining(span_coefficient=1e-3))


def ulmfit() -> Experiment:
    """Rows with a label each, which features pooled over the row tell, normalized over the batch."""
    # Normalization divides by the deviation of the features: of very small ones it would enlarge rounding noise.
    model = dataclasses.replace(UlmfitConfig.above(awd_lstm().model), initializer_range=1.0)
    return dataclasses.replace(classification(), model=model)


def elmo() -> Experiment:
    """A text from both its ends, that goes on from batch to batch, and a softmax over words that are drawn."""
    sizes = {"filter_widths": (1, 2), "filter_counts": (8, 8), "n_highway": 1, "dim": 16, "projection_dim": 8}
    model = ElmoConfig(vocab_size=64, max_characters_per_token=5, character_dim=4, **sizes)
    data = Data(layout=layouts.BidirectionalStreams(), sequence_length=16)
    return dataclasses.replace(recurrent(), model=model, objective=BidirectionalLanguageModel(negatives=24), data=data)


def word2vec() -> Experiment:
    """Words and their neighbours; the rows of frequent words are held back."""
    objective = NegativeSampling(window=2, shared=8, threshold=0.05, row_updates=8.0)
    return dataclasses.replace(gpt2(), model=Word2VecConfig(vocab_size=64, vector_size=16), objective=objective)


def glove() -> Experiment:
    """Cells of a count; of later rows some are empty."""
    model, data = GloveConfig(vocab_size=64, vector_size=16), Data(layout=layouts.Cooccurrences(), sequence_length=16)
    return dataclasses.replace(gpt2(), model=model, objective=WeightedLeastSquares(x_max=5.0), data=data)


def hierarchical_softmax() -> Experiment:
    """Words from all that stand around them, as paths in a tree."""
    objective = HierarchicalSoftmax(ContinuousBagOfWords(), window=2, threshold=0.05, row_updates=8.0, longest_path=10)
    return dataclasses.replace(word2vec(), objective=objective)


def classification() -> Experiment:
    """Rows with a label each."""
    return Experiment(
        bert().model,
        SequenceClassification(labels=("even", "odd")),
        Sentences(sequence_length=16),
        optimizer=OPTIMIZER,
        training=TRAINING,
        checkpoint=CHECKPOINT,
    )


def cove() -> Experiment:
    """A pair of a source and a target a row, read and written by LSTMs."""
    model = CoveConfig(vocab_size=64, vector_size=16, hidden_size=12, num_layers=1)
    data = Data(layout=layouts.PairedStreams(), sequence_length=8)
    return dataclasses.replace(transformer(), model=model, data=data)


def taglm() -> Experiment:
    """Labels of sentences as a whole, beside language models."""
    characters = {"max_characters_per_token": 5, "character_dim": 4, "filter_widths": (2,), "filter_counts": (8,)}
    elmo = ElmoConfig(vocab_size=64, **characters, n_highway=0, n_layers=1, dim=8, projection_dim=4)
    sizes = {"vocab_size": 64, "word_dim": 8, "character_dim": 4, "character_features": 8, "hidden_size": 8}
    return dataclasses.replace(
        classification(),
        model=TaglmConfig(**sizes, max_characters_per_token=5, language_model=elmo),
        objective=CrfTagging(labels=("even", "odd")),
        data=Tagging(sequence_length=16),
    )


def cvt() -> Experiment:
    """Labels of words, trees and translations, and what restricted views of a sentence make of them."""
    sizes = {"word_dim": 8, "character_dim": 4, "filter_count": 8, "first_size": 8, "second_size": 8}
    tags = CrossViewTagging(name="tags", labels=("even", "odd"))
    trees = CrossViewParsing(name="trees", relations=("r", "s"))
    texts = CrossViewTranslation(name="texts", target_words=tuple("pqrstuvwxyz"), beams=2, max_new_tokens=3)
    tasks = TaggingTask(name="tags"), ParsingTask(name="trees"), TranslationTask(name="texts")
    return dataclasses.replace(
        classification(),
        model=CvtConfig(64, max_characters_per_token=5, filter_widths=(2,), projection_size=8, parser_size=4, **sizes),
        objective=CrossViewLearning(tasks=(tags, trees, texts)),
        data=TasksWithText(tasks=tasks, sequence_length=16, target_length=4),
    )


def changed(run: Experiment, **groups: dict[str, Any]) -> Experiment:
    """The run with fields of its groups replaced: `changed(run, training={"steps": 3})`."""
    return dataclasses.replace(
        run, **{name: dataclasses.replace(getattr(run, name), **fields) for name, fields in groups.items()}
    )


def without_dropout(run: Experiment) -> Experiment:
    """The run with a deterministic forward pass, for comparing meshes and microbatches."""
    rates = [field.name for field in dataclasses.fields(run.model) if "drop" in field.name]
    return changed(run, model=dict.fromkeys(rates, 0.0))
