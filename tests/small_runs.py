"""Sizes of the runs that many tests share (`small_run` and `decoder_run` of conftest.py)."""

SMALL_BERT = (
    "--model.num_hidden_layers 1 --model.hidden_size 32 --model.num_attention_heads 2 --model.intermediate_size 64 "
    "--model.vocab_size 800 --tokenizer.vocab_size 800 --data.sequence_length 32 --data.layout.duplicates 1 "
    "--training.steps 6 --training.batch_size 16 --training.log_every 2 --training.evaluation_batches 2 "
    "--training.evaluate_every 3 --checkpoint.every 3"
).split()
"""Overrides that make experiments/bert_tiny.py a matter of seconds."""
DECODER_ROW = 24
"""Tokens of a row of `decoder_run`."""
