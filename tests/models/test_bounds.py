"""The largest and the smallest numbers that a config's sentences name are taken, and the next ones are not."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from plmjax.errors import UserError
from plmjax.models.adaptive_span import AdaptiveSpanConfig
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.compressed.configs import CompressedBertConfig
from plmjax.models.cvt.cvt import CvtConfig
from plmjax.models.elmo import ElmoConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.lite_transformer.lite_transformer import LiteTransformerConfig
from plmjax.models.longformer.decoder import LongformerDecoderConfig
from plmjax.models.longformer.encoder_decoder import LedConfig
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.models.roberta import RobertaConfig
from plmjax.models.t5 import T5Config
from plmjax.models.transformer_xl import TransformerXlConfig

LONGFORMER = {"max_position_embeddings": 66, "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
BOUNDS = {
    "the window of a BERT": (lambda n: BertConfig.tiny(max_position_embeddings=9, attention_window=n), [2, 8], [0, 10]),
    "an even longest row": (lambda n: BertConfig.tiny(max_position_embeddings=8, attention_window=n), [8], [10]),
    "the window of a GPT-2": (lambda n: Gpt2Config.tiny(n_positions=9, attention_window=n), [1, 9], [0, 10]),
    "heads of a GPT-2": (lambda n: Gpt2Config.tiny(n_embd=12, n_head=n), [1, 12], [0, 5]),
    "groups": (lambda n: AlbertConfig.tiny(num_hidden_groups=n), [1, 2], [0, 3]),
    "padding in the vocabulary": (lambda n: RobertaConfig.tiny(vocab_size=9, pad_token_id=n), [0, 8], [-1, 9]),
    "padding in the positions": (lambda n: RobertaConfig.tiny(max_position_embeddings=9, pad_token_id=n), [7], [8]),
    "the window of a Longformer": (
        lambda n: LongformerConfig(**LONGFORMER, attention_window=(n,), max_global_tokens=1), [2, 64], [0, 66],
    ),
    "global tokens": (
        lambda n: LongformerConfig(**LONGFORMER, attention_window=(4,), max_global_tokens=n), [1, 16], [0, 17],
    ),
    "the window of an LED": (
        lambda n: LedConfig.tiny(max_position_embeddings=64, attention_window=(n,), max_global_tokens=16), [64], [66],
    ),
    "dilated heads": (lambda n: LongformerDecoderConfig.tiny(dilated_heads=n), [0, 4], [-1, 5]),
    "the span that is read": (lambda n: AdaptiveSpanConfig.tiny(computed_span=n), [1, 256], [0, 257]),
    "the first share of a span": (lambda n: AdaptiveSpanConfig.tiny(initial_fraction=n), [0, 1], [-0.01, 1.01]),
    "filters of an ELMo": (
        lambda n: ElmoConfig.tiny(filter_widths=(n,), filter_counts=(2,), max_characters_per_token=5), [1, 5], [0, 6],
    ),
    "filters of a CVT": (lambda n: CvtConfig(filter_widths=(n,), max_characters_per_token=5), [1, 5], [0, 6]),
    "the embeddings of a MobileBERT": (lambda n: MobileBertConfig.mini(embedding_size=n), [1, 127], [0, 128]),
    "buckets": (lambda n: T5Config.tiny(relative_attention_num_buckets=n), [4, 32], [2, 5]),
    "the largest distance": (
        lambda n: T5Config.tiny(relative_attention_num_buckets=8, relative_attention_max_distance=n), [5], [4],
    ),
    "a memory of one length": (lambda n: TransformerXlConfig.tiny(same_length=True, mem_len=n), [1], [0]),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name: str) -> None:
    made: tuple[Callable[[Any], Any], list, list] = BOUNDS[name]
    config, taken, refused = made
    for number in taken:
        assert config(number)
    for number in refused:
        with pytest.raises(UserError, match=r"^Expected "):
            config(number)


AXES = ReformerConfig.tiny().axial_pos_shape
SEVERAL = {
    "windows of a Longformer": (
        lambda numbers: LongformerConfig(**LONGFORMER, attention_window=numbers, max_global_tokens=1),
        (4, 4), [0, 3, 66],
    ),
    "dilations of a Longformer": (
        lambda numbers: LongformerConfig(
            **LONGFORMER, attention_window=(4,), attention_dilation=numbers, max_global_tokens=1
        ),
        (1, 2), [0],
    ),
    "windows of a decoder": (
        lambda numbers: LongformerDecoderConfig.tiny(n_layer=2, attention_window=numbers), (4, 8), [0],
    ),
    "dilations of a decoder": (
        lambda numbers: LongformerDecoderConfig.tiny(n_layer=2, attention_dilation=numbers), (1, 2), [0],
    ),
    "widths of filters of an ELMo": (
        lambda numbers: ElmoConfig.tiny(filter_widths=numbers, filter_counts=(2, 2), max_characters_per_token=5),
        (1, 2), [0, 6],
    ),
    "filters of an ELMo": (
        lambda numbers: ElmoConfig.tiny(filter_widths=(1, 2), filter_counts=numbers), (1, 2), [0],
    ),
    "filters of a CVT": (lambda numbers: CvtConfig(filter_widths=numbers, max_characters_per_token=5), (2, 3), [0, 6]),
    "heads of layers": (
        lambda numbers: CompressedBertConfig.tiny(num_hidden_layers=2, layer_heads=numbers, layer_widths=(3, 3)),
        (1, 2),
        [0],
    ),
    "widths of layers": (
        lambda numbers: CompressedBertConfig.tiny(num_hidden_layers=2, layer_heads=(1, 1), layer_widths=numbers),
        (1, 2),
        [0],
    ),
    "ranks": (lambda numbers: CompressedBertConfig.tiny(ranks=numbers), (0, 1, 2, 3, 4, 5), [-1]),
    "widths of convolutions": (
        lambda numbers: LiteTransformerConfig.tiny(encoder_layers=2, encoder_kernel_sizes=numbers), (3, 5), [-1, 0, 4],
    ),
    "widths of convolutions of a decoder": (
        lambda numbers: LiteTransformerConfig.tiny(decoder_layers=2, decoder_kernel_sizes=numbers), (3, 4), [0],
    ),
    "buckets along two axes": (lambda numbers: ReformerConfig.tiny(num_buckets=numbers), (2, 4), [0, 1, 3]),
    "axes of positions": (lambda numbers: ReformerConfig.tiny(axial_pos_shape=numbers), AXES, [0, -1]),
    "first tokens of clusters": (
        lambda numbers: TransformerXlConfig.tiny(vocab_size=20, cutoffs=numbers), (5, 10, 15), [0, 20],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_each_of_several_numbers_is_checked(name: str) -> None:
    """A number that does not fit is refused at every place among others that do."""
    made: tuple[Callable[[Any], Any], tuple, list] = SEVERAL[name]
    config, taken, refused = made
    assert config(taken)
    for place, number in itertools.product(range(len(taken)), refused):
        with pytest.raises(UserError, match=r"^Expected "):
            config((*taken[:place], number, *taken[place + 1 :]))


def test_the_last_of_the_clusters_has_a_feature() -> None:
    """Each has a quarter of the features of the one before it."""
    sizes = {"vocab_size": 20, "cutoffs": (5, 10), "div_val": 4}
    assert TransformerXlConfig.tiny(**sizes, d_embed=16)
    with pytest.raises(UserError, match="Expected an embedding size of 16 at least"):
        TransformerXlConfig.tiny(**sizes, d_embed=15)
