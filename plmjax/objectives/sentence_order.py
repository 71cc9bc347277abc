"""Sentence order prediction (ALBERT section 3.1): do two neighbouring texts stand in their order, or swapped?

Both are of one topic, so that the topic alone, which gives a text from elsewhere away, tells nothing. Labels come with
the batch (`plmjax.data.layouts.SentenceOrder`): 0 in order, 1 swapped.
"""

from plmjax.objectives.sentence_pairs import PairLabels

SENTENCE_ORDER = PairLabels(term="sop", field="sentence_order", logits="sop_logits")
