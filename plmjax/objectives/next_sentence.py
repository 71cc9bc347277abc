"""Next sentence prediction (BERT section 3.1): does the second text follow the first, or is it from elsewhere?

Labels come with the batch (`plmjax.data.layouts.SentencePairs`): 0 follows, 1 is from another document.
"""

from plmjax.objectives.sentence_pairs import PairLabels

NEXT_SENTENCE = PairLabels(term="nsp", field="next_sentence", logits="seq_relationship_logits")
