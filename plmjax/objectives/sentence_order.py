"""Sentence order prediction (ALBERT section 3.1): are two adjacent texts in their order, or swapped?

Both texts have the same topic. So the topic, which reveals a text from elsewhere, does not help. Labels come with the
batch (`plmjax.data.layouts.SentenceOrder`): 0 in order, 1 swapped.
"""

from plmjax.objectives.sentence_pairs import PairLabels

SENTENCE_ORDER = PairLabels(term="sop", field="sentence_order", logits="sop_logits")
