"""Tests that take long for what they prove: they run by night, and whenever the room that they test was changed.

Nearly all of them run something whole, such as a command, a run or a step of a system, whose parts have quick tests of
their own, or one more case of a rule. Each has the mark `night`, which `pytest -m night` takes; so have the systems
that REPRESENTATIVES in tests/families leaves to the night. tests/changes.py says when a change brings them back.
"""

BY_NIGHT = {
    "compression/distillation/test_augmentation.py": ("test_candidates_of_both_kinds",),
    "compression/distillation/test_distil.py": (
        "test_a_mobilebert_learns_its_layers_and_has_the_embeddings_of_its_teacher",
        "test_a_student_is_a_run_and_goes_on_to_the_same_bits",
        "test_mistakes",
        "test_students_of_a_task",
    ),
    "compression/distillation/test_stored.py": ("test_translations",),
    "compression/distillation/test_terms.py": (
        "test_hidden_states_of_a_narrow_student",
        "test_soft_targets",
        "test_the_triple_loss",
    ),
    "compression/pruning/test_published_rules.py": ("test_an_evaluation_has_the_masks_without_the_penalty",),
    "compression/pruning/test_structure.py": ("test_importance_is_the_gradient_of_a_gate_on_each_head",),
    "compression/quantization/test_aware.py": (
        "test_the_result_computes_as_the_training_did",
        "test_twenty_steps_are_those_of_the_published_rule",
    ),
    "compression/quantization/test_products.py": (
        "test_a_decoder_writes_in_int8",
        "test_fine_tuning_and_exports_are_float32",
        "test_other_commands_compute_in_int8",
        "test_ranges_are_the_largest_values_of_the_examples",
        "test_scales_are_those_of_the_stored_kernels",
    ),
    "compression/quantization/test_weights.py": (
        "test_all_commands_compute_with_the_rounded_weights",
        "test_an_export_says_that_it_is_float32",
    ),
    "compression/test_factorization.py": (
        "test_a_decoder_at_full_energy_writes_the_same",
        "test_a_product_of_two_matrices_is_its_whole_matrix",
        "test_commands_take_the_result",
        "test_the_result_is_fine_tuned",
    ),
    "compression/test_prune.py": (
        "test_a_pruned_run_is_a_run",
        "test_heads_are_removed",
        "test_methods_that_train",
        "test_mistakes",
    ),
    "compression/test_sharing.py": (
        "test_a_pretrained_bert_fills_the_same_tokens",
        "test_a_shared_run_is_trained_evaluated_and_compressed_again",
    ),
    "contracts/test_cache.py": (
        "test_taken_rows_are_those_of_a_cache_that_read_them[gpt2]",
        "test_taken_rows_are_those_of_a_cache_that_read_them[transformer_xl]",
    ),
    "contracts/test_scores.py": ("test_sums_and_their_gradients_are_those_of_the_logits[plain-full]",),
    "contracts/test_visibility.py": ("test_a_condition_of_its_own_file_works_in_every_backend",),
    "data/cleaning/test_cleaner.py": ("test_number_of_processes_changes_nothing",),
    "data/layouts/test_segments.py": ("test_has_the_published_distribution",),
    "data/remote/test_commands.py": (
        "test_a_mixture_is_read_within_the_limit",
        "test_a_run_that_is_stopped_goes_on_to_the_same_end",
        "test_a_service_that_fails_in_training_is_one_sentence",
        "test_bench_and_evaluate_read_no_more_than_the_limit",
        "test_other_limits_and_windows_are_another_run",
    ),
    "data/remote/test_reading.py": (
        "test_a_row_is_that_of_its_piece_as_a_dataset",
        "test_a_run_begins_at_any_step_with_the_pieces_of_its_window",
        "test_batches_depend_on_seed_phase_and_step_for_any_number_of_hosts",
    ),
    "data/test_pipeline.py": ("test_a_closed_iterator_ends_and_an_open_one_does_not_hang_the_exit",),
    "data/test_tokenizers.py": ("test_wordpiece_ids_over_all_of_the_shared_text",),
    "exchange/test_exported_function.py": (
        "test_it_gives_the_outputs_of_the_module[a language model]",
        "test_it_gives_the_outputs_of_the_module[an encoder]",
    ),
    "exchange/test_exported_text.py": (
        "test_a_decoder_that_answers_reads_the_row_of_its_task",
        "test_a_text_that_begins_otherwise_is_found",
    ),
    "exchange/test_exports_docs.py": ("test_folders_and_cards_are_written_and_opened",),
    "exchange/test_generation_settings.py": (
        "test_the_command_writes_what_transformers_does",
        "test_the_texts_at_the_end_of_a_run_are_written_by_them",
    ),
    "exchange/test_import_export.py": (
        "test_a_fine_tuned_multiple_choice_is_exported_and_an_imported_one_evaluates",
        "test_a_model_without_pooler_embeds_and_is_fine_tuned",
        "test_a_translation_model_is_scored_on_parallel_files_and_translates",
        "test_import_and_export_give_every_bit_back[BertModel]",
    ),
    "exchange/test_sentence_transformers.py": ("test_its_vectors_are_those_of_embed[mean-False]",),
    "experiment/test_catalogue.py": ("test_a_wheel_brings_the_experiments",),
    "finetuning/cross_view/test_cross_view.py": (
        "test_a_wide_beam_finds_the_likeliest_of_all_translations",
        "test_the_commands_of_the_page_learn_trees",
    ),
    "finetuning/starts/test_longformer.py": ("test_an_led_of_a_bart_is_that_bart_in_short_sources",),
    "finetuning/starts/test_new_source_encoder.py": ("test_the_stages_train_what_the_paper_says",),
    "finetuning/tasks/test_choices.py": ("test_losses_and_gradients_equal_those_of_transformers_and_of_packed_rows",),
    "finetuning/tasks/test_label_sets.py": ("test_losses_and_gradients_equal_those_of_transformers",),
    "finetuning/tasks/test_mixture.py": ("test_another_file_is_reported_as_its_task_alone",),
    "finetuning/tasks/test_questions.py": (
        "test_losses_and_gradients_equal_those_of_transformers_and_of_packed_rows",
        "test_tokens_of_every_gold_answer_give_it_back[zh-byte-bpe]",
        "test_tokens_of_every_gold_answer_give_it_back[zh-sentencepiece-bpe]",
        "test_tokens_of_every_gold_answer_give_it_back[zh-sentencepiece-unigram]",
        "test_tokens_of_every_gold_answer_give_it_back[zh-wordpiece]",
    ),
    "finetuning/tasks/test_sentences.py": ("test_outputs_losses_and_gradients_equal_those_of_transformers[3]",),
    "finetuning/tasks/test_tagging.py": (
        "test_losses_and_gradients_equal_those_of_transformers_and_of_packed_rows",
        "test_real_files_are_read_wholly[ud_english_ewt/en_ewt-ud-train.conllu.gz]",
    ),
    "finetuning/tasks/test_text_generation.py": (
        "test_a_decoder_writes_after_the_delimiter_and_shows_no_prompt",
        "test_an_evaluation_tells_the_nats_of_each_target_and_what_is_written",
        "test_each_host_writes_a_share_and_has_the_whole",
        "test_generate_lays_prompts_out_as_the_task_and_writes_as_it_says",
        "test_smoothing_is_of_the_training_alone",
    ),
    "finetuning/test_cove.py": (
        "test_command[finetune-experiments/cove_classification.py]",
        "test_translation_begins_with_the_vectors",
    ),
    "finetuning/test_docs.py": ("test_command",),
    "finetuning/test_gpt.py": (
        "test_a_run_learns_the_task_and_the_next_token",
        "test_likeness_does_not_depend_on_the_order",
    ),
    "finetuning/test_kinds.py": (
        "test_ends_early_and_stands_for_its_best",
        "test_its_checkpoint_evaluates_to_the_same_and_writes_the_same[choices]",
        "test_learns_and_writes_what_it_predicts[choices]",
        "test_learns_and_writes_what_it_predicts[label sets]",
        "test_learns_and_writes_what_it_predicts[questions]",
    ),
    "finetuning/test_run.py": (
        "test_a_run_goes_on_from_its_own_start_and_files_alone",
        "test_frozen_encoder_stays_what_it_was",
        "test_regression_and_the_random_twin",
        "test_stopped_and_run_again_it_ends_in_the_same_parameters",
        "test_the_random_twin_of_a_checkpoint_is_named_by_it",
    ),
    "finetuning/test_taggers.py": ("test_a_tagger_learns_above_language_models_that_do_not",),
    "finetuning/test_terms_and_texts.py": (
        "test_gpts_loss_is_the_tasks_and_half_of_the_language_models[1]",
        "test_predictions_are_the_texts_that_the_model_writes",
    ),
    "finetuning/test_ulmfit.py": (
        "test_each_stage_begins_with_the_one_before",
        "test_running_statistics_are_kept_and_averaged",
    ),
    "finetuning/test_xlnet.py": (
        "test_an_answered_file_evaluates_to_the_same",
        "test_answers_are_found_and_refused",
        "test_sentences_are_labelled_at_their_last_token",
        "test_texts_as_inputs_are_padded_on_the_left",
    ),
    "fuzzing/test_fuzzing.py": ("test_a_changed_file_is_read_or_refused[report]",),
    "generation/test_against_transformers.py": (
        "test_greedy[{}]",
        "test_texts_of_bart",
        "test_texts_of_sources",
    ),
    "generation/test_caches.py": (
        "test_a_cache_gives_the_probabilities_of_reading_the_whole_text_at_once[beams-awd_lstm]",
        "test_a_cache_gives_the_probabilities_of_reading_the_whole_text_at_once[beams-reformer]",
        "test_a_cache_gives_the_probabilities_of_reading_the_whole_text_at_once[beams-transformer_xl]",
        "test_a_cache_gives_the_probabilities_of_reading_the_whole_text_at_once[greedy-awd_lstm]",
        "test_a_cache_gives_the_probabilities_of_reading_the_whole_text_at_once[greedy-reformer]",
        "test_a_cache_gives_the_probabilities_of_reading_the_whole_text_at_once[greedy-transformer_xl]",
        "test_a_text_does_not_depend_on_the_prompts_beside_it[reformer]",
        "test_text_goes_on_behind_a_memory_that_is_full",
    ),
    "generation/test_command.py": (
        "test_a_tokenizer_that_lacks_characters",
        "test_files",
        "test_the_terminal_shows_the_text_of_the_seed",
    ),
    "generation/test_constraints.py": ("test_temperature_comes_first_then_the_best_then_the_nucleus",),
    "generation/test_loop.py": (
        "test_a_text_of_a_source_comes_token_by_token",
        "test_nothing_is_compiled_for_another_length",
        "test_prompts_of_about_the_same_length_are_read_together",
        "test_sharded_equals_unsharded[beams]",
        "test_sources_are_padded_on_the_right_and_shared_by_the_beams",
    ),
    "generation/test_settings_of_transformers.py": ("test_all_settings_together[gpt2-greedy]",),
    "inference/test_carried_states.py": ("test_a_model_that_reads_both_ways_has_a_perplexity_for_each",),
    "inference/test_embed.py": (
        "test_a_mix_learned_on_a_task_is_taken_from_its_checkpoint",
        "test_stopped_on_the_way_it_goes_on_and_ends_in_the_same_file[jsonl-mean]",
    ),
    "inference/test_evaluate.py": ("test_evaluates_raw_text",),
    "inference/test_fill_gaps.py": (
        "test_the_command_shows_spans_or_texts",
        "test_what_is_written_has_the_probability_of_its_scores",
    ),
    "inference/test_members.py": ("test_probabilities_are_the_mean_of_the_runs",),
    "inference/test_perplexity.py": (
        "test_a_prefix_language_model_takes_what_is_not_asked_for_as_its_prefix",
        "test_every_token_is_told_once_from_the_context_of_its_window[24-1]",
        "test_the_window_as_stride_is_the_evaluation_of_the_run",
    ),
    "inference/test_predict.py": (
        "test_a_long_file_is_predicted_in_parts_and_in_order[single]",
        "test_command_writes_nothing_but_predictions_to_standard_output",
        "test_of_a_file_with_labels_and_without_is_what_evaluation_writes",
        "test_official_formats",
        "test_plain_text_is_one_text_a_line",
    ),
    "inference/test_published_corpora.py": (
        "test_bits_are_of_each_byte",
        "test_perplexity_is_of_words_and_line_ends",
    ),
    "inference/test_task_settings.py": ("test_raw_text_has_a_key",),
    "inference/test_unknown_tokens.py": ("test_any_text_is_evaluated_where_the_share_allows_it",),
    "inference/test_zero_shot.py": (
        "test_a_mistake_is_one_sentence",
        "test_a_prefix_language_model_reads_the_passage_from_both_sides",
        "test_reads_the_published_files",
    ),
    "initialization/test_token_embeddings.py": ("test_a_run_begins_with_a_file_and_says_how_many_words_it_found",),
    "interop/test_awd_lstm.py": ("test_a_file_becomes_a_run_that_scores_as_torch_does[zip]",),
    "interop/test_conversion.py": ("test_shapes_come_from_the_inputs_that_a_module_takes",),
    "interop/test_elmo.py": (
        "test_an_imported_model_embeds_words_that_no_vocabulary_has_and_is_exported",
        "test_released_files_give_the_outputs_of_the_released_code",
    ),
    "interop/test_heads.py": (
        "test_heads_of_a_system_are_written_and_read[choices-electra]",
        "test_heads_of_a_system_are_written_and_read[choices-longformer]",
        "test_heads_of_a_system_are_written_and_read[choices-roberta]",
        "test_heads_of_a_system_are_written_and_read[labels-electra]",
        "test_heads_of_a_system_are_written_and_read[labels-longformer]",
        "test_heads_of_a_system_are_written_and_read[labels-roberta]",
        "test_heads_of_tokens_are_written_and_read[Purpose.ANSWERS-electra]",
        "test_heads_of_tokens_are_written_and_read[Purpose.ANSWERS-longformer]",
        "test_heads_of_tokens_are_written_and_read[Purpose.ANSWERS-roberta]",
        "test_heads_of_tokens_are_written_and_read[Purpose.TOKEN_LABELS-electra]",
        "test_heads_of_tokens_are_written_and_read[Purpose.TOKEN_LABELS-longformer]",
        "test_heads_of_tokens_are_written_and_read[Purpose.TOKEN_LABELS-roberta]",
    ),
    "layers/attention/test_bands.py": (
        "test_a_windowed_gpt2_is_the_same_in_bands",
        "test_time_and_memory_of_a_windowed_gpt2_grow_as_its_rows",
    ),
    "layers/attention/test_multi_head.py": (
        "test_a_whole_bert_is_the_same_block_by_block",
        "test_decoding_token_by_token_equals_one_causal_pass[dense]",
        "test_groups_of_heads_draw_masks_of_their_own_and_threefry_has_no_groups",
        "test_rows_of_65536_tokens_need_no_square_array",
    ),
    "layers/recurrent/test_gru.py": ("test_no_state_and_no_gradient_passes_from_document_to_document",),
    "layers/recurrent/test_lstm.py": ("test_neither_direction_reads_another_packed_sequence",),
    "layers/test_crf.py": ("test_what_a_scheme_forbids_has_no_probability",),
    "layers/test_int8.py": ("test_a_token_depends_on_no_other_row_and_on_no_later_token",),
    "layers/test_reversible_stack.py": (
        "test_another_execution_changes_nothing[remat of dots and unrolled]",
        "test_another_execution_changes_nothing[unrolled]",
    ),
    "layers/test_stack.py": ("test_execution_changes_nothing",),
    "layers/words/test_adaptive_words.py": (
        "test_losses_and_gradients_are_those_of_the_formula[fewer features for each-tied0-few]",
        "test_losses_and_gradients_are_those_of_the_formula[fewer features for each-tied0-many]",
        "test_losses_and_gradients_are_those_of_the_formula[fewer features for each-tied1-few]",
        "test_losses_and_gradients_are_those_of_the_formula[fewer features for each-tied1-many]",
        "test_losses_and_gradients_are_those_of_the_formula[one cluster-tied5-many]",
        "test_losses_and_gradients_are_those_of_the_formula[one size, projected-tied2-few]",
        "test_losses_and_gradients_are_those_of_the_formula[one size, projected-tied2-many]",
        "test_losses_and_gradients_are_those_of_the_formula[one size, projected-tied3-few]",
        "test_losses_and_gradients_are_those_of_the_formula[one size, projected-tied3-many]",
        "test_losses_and_gradients_are_those_of_the_formula[one size-tied4-few]",
        "test_losses_and_gradients_are_those_of_the_formula[one size-tied4-many]",
        "test_other_language_models_learn_with_them",
        "test_released_entries_are_turned_around",
        "test_sharded_equals_unsharded",
    ),
    "layers/words/test_vocabulary_scores.py": ("test_smoothing_and_z_loss_are_those_of_all_scores_at_once[3]",),
    "models/bart/test_bart.py": ("test_a_classifier_looks_at_the_last_token_which_has_seen_all_of_the_text",),
    "models/bart/test_translation.py": (
        "test_outputs_and_gradients_are_those_of_two_barts",
        "test_what_is_read_once_is_what_is_read_with_the_target",
    ),
    "models/cove/test_cove.py": (
        "test_the_state_passes_by_padding_in_a_target",
        "test_the_texts_of_a_beam_search_have_the_probability_of_reading_them_at_once",
    ),
    "models/cvt/test_translation.py": ("test_a_word_more_is_as_all_at_once",),
    "models/lite_transformer/test_lite_transformer.py": ("test_a_cache_gives_the_logits_of_whole_rows",),
    "models/longformer/test_attention.py": (
        "test_bands_and_global_tokens_are_whole_rows_with_masks[blockwise-2-6-local]",
        "test_bands_and_global_tokens_are_whole_rows_with_masks[blockwise-20-20-local]",
        "test_bands_and_global_tokens_are_whole_rows_with_masks[blockwise-3-3-local]",
        "test_bands_and_global_tokens_are_whole_rows_with_masks[dense-2-6-local]",
        "test_bands_and_global_tokens_are_whole_rows_with_masks[dense-20-20-local]",
        "test_bands_and_global_tokens_are_whole_rows_with_masks[dense-3-3-global]",
        "test_bands_and_global_tokens_are_whole_rows_with_masks[dense-3-3-local]",
        "test_dilated_windows_are_whole_rows_with_masks[(1, 3)]",
        "test_dilated_windows_are_whole_rows_with_masks[(3, 2)]",
        "test_time_and_memory_grow_as_the_rows[blockwise-1]",
        "test_time_and_memory_grow_as_the_rows[blockwise-2]",
        "test_time_and_memory_grow_as_the_rows[dense-2]",
    ),
    "models/longformer/test_decoder.py": (
        "test_a_memory_gives_what_the_whole_text_gives[29-12]",
        "test_bands_change_nothing[dense]",
        "test_time_and_memory_grow_as_the_rows",
    ),
    "models/longformer/test_encoder_decoder.py": (
        "test_a_target_has_a_length_of_its_own",
        "test_the_first_token_is_global",
    ),
    "models/longformer/test_longformer.py": (
        "test_a_text_without_a_separator_has_no_question",
        "test_windows_reach_as_far_as_their_sum",
    ),
    "models/reformer/test_attention.py": (
        "test_a_token_behind_a_cache_sees_what_the_last_of_a_row_sees"
        "[('local', 'local')-{'local_attn_chunk_length': 8, 'lsh_attn_chunk_length': 4}]",
        "test_a_token_behind_a_cache_sees_what_the_last_of_a_row_sees[('local', 'lsh', 'lsh')-{}]",
        "test_a_token_behind_a_cache_sees_what_the_last_of_a_row_sees"
        "[('lsh',)-{'local_attn_chunk_length': 8, 'lsh_attn_chunk_length': 4, "
        "'num_hashes': 1, 'lsh_num_chunks_before': 2}]",
        "test_no_token_sees_a_later_one_or_padding",
    ),
    "models/reformer/test_reformer.py": (
        "test_a_few_tokens_at_a_time_are_fed_forward_as_all_at_once",
        "test_hashes_are_drawn_in_training_and_fixed_elsewhere",
        "test_memory_of_a_step_grows_with_depth_by_parameters_and_buckets_alone",
        "test_the_backward_pass_gives_the_gradients_of_plain_autodiff",
    ),
    "models/test_albert.py": (
        "test_a_group_costs_the_parameters_of_its_layers_and_a_layer_the_flops_of_what_it_is_made_of",
        "test_every_layer_is_the_same_one",
        "test_groups_of_layers_equal_transformers",
    ),
    "models/test_bert.py": ("test_every_layer_is_drawn_for_itself",),
    "models/test_glove.py": ("test_learns_which_words_stand_in_the_same_places",),
    "models/test_mobilebert.py": ("test_the_last_word_does_not_read_the_padding",),
    "models/test_nnlm.py": ("test_learns_from_a_word_that_is_not_the_last_one",),
    "models/test_t5.py": (
        "test_a_cache_changes_nothing",
        "test_version_1_1_scores_tokens_with_a_layer_of_its_own",
    ),
    "models/test_transformer.py": ("test_token_by_token_with_a_cache_it_says_what_it_says_of_whole_rows",),
    "models/test_transformer_xl.py": (
        "test_a_document_sees_nothing_before_it",
        "test_embeddings_are_joined_from_their_clusters",
    ),
    "models/test_windows.py": (
        "test_a_step_of_4096_tokens_costs_as_its_window[gpt2]",
        "test_windows_reach_as_far_as_the_layers_together",
    ),
    "models/test_word2vec.py": ("test_learns_which_words_stand_in_the_same_places",),
    "models/xlnet/test_xlnet.py": (
        "test_blocks_of_attention_give_the_same",
        "test_nothing_that_the_order_hides_is_seen",
    ),
    "objectives/test_adaptive_span_pretraining.py": (
        "test_an_evaluation_reads_no_more_than_the_longest_span",
        "test_spans_that_grow_are_read",
        "test_the_program_is_built_again_and_the_parameters_are_those_of_the_whole_span",
    ),
    "objectives/test_albert_pretraining.py": ("test_a_continuation_after_a_separator_begins_a_word",),
    "objectives/test_bert_pretraining.py": (
        "test_filling_counts_nothing_and_parts_add_up",
        "test_masked_language_model_alone_trains_an_encoder_without_a_pooler",
    ),
    "objectives/test_bidirectional_language_model.py": ("test_states_go_on_from_batch_to_batch",),
    "objectives/test_choosing.py": (
        "test_a_row_of_65536_tokens_is_masked_in_memory_that_grows_with_its_length[AlbertPretraining-words]",
    ),
    "objectives/test_electra_pretraining.py": (
        "test_parts_of_a_batch_draw_what_the_whole_does",
        "test_the_step_computes_what_the_closed_forms_of_its_parts_say",
    ),
    "objectives/test_masked_language_model.py": (
        "test_a_continuation_after_a_separator_begins_a_word",
        "test_dynamic_masks_follow_the_key_and_static_ones_the_row",
    ),
    "objectives/test_permutation_language_model.py": (
        "test_a_document_that_begins_sees_no_memory",
        "test_a_memory_of_bfloat16_states_has_the_bits_of_float32",
        "test_draws_depend_on_the_key_alone",
    ),
    "objectives/test_prefix_language_model.py": ("test_a_prefix_of_one_token_is_the_causal_language_model",),
    "objectives/test_roberta_pretraining.py": ("test_loss_equals_transformers",),
    "objectives/test_sequence_to_sequence.py": ("test_the_loss_is_the_mean_nats_of_the_targets_that_count",),
    "objectives/test_transformer_xl_pretraining.py": (
        "test_a_memory_of_bfloat16_states_has_the_bits_of_float32",
        "test_an_evaluation_may_remember_more",
        "test_distances_may_be_clamped_in_an_evaluation_alone",
        "test_documents_apart_begin_anew",
        "test_scores_of_tokens_are_those_of_an_evaluation",
    ),
    "objectives/text_to_text/test_span_corruption.py": (
        "test_the_loss_of_held_out_text_is_that_of_its_tokens_and_all_targets_are_trained",
    ),
    "parallel/test_hosts.py": (
        "test_a_host_that_hangs_is_named_with_every_stack",
        "test_hosts_that_do_not_share_a_folder_are_told",
        "test_other_data_is_refused_on_every_host",
    ),
    "parallel/test_topologies.py": (
        "test_the_clock_turns_the_compilers_cycles_into_the_chips_peak[v3:2x2]",
        "test_the_clock_turns_the_compilers_cycles_into_the_chips_peak[v5e:2x2]",
        "test_two_plans_are_made_at_once_and_nothing_is_said",
    ),
    "plan/test_collectives.py": ("test_every_gradient_is_reduced_once_in_bfloat16[v3:4x4]",),
    "plan/test_estimate.py": ("test_the_arithmetic_of_devices_and_batch",),
    "plan/test_hlo.py": (
        "test_cycles_of_a_scan_grow_with_its_layers",
        "test_matmuls_are_found_in_fusions_with_their_dtypes",
    ),
    "plan/test_int8.py": ("test_all_projections_of_the_layers_multiply_integers",),
    "plan/test_schedules.py": (
        "test_other_processes_do_not_write_their_schedules_here",
        "test_products_take_as_long_as_jax_has_measured",
    ),
    "plan/test_search.py": (
        "test_a_search_tries_every_policy_from_the_fewest_microbatches_that_fit",
        "test_the_largest_batch_that_fits_is_found_in_few_compiles",
    ),
    "plan/test_shared_layers.py": ("test_a_traced_step_stacks_no_weights_that_layers_share",),
    "plan/test_traffic.py": ("test_bytes_of_a_scan_grow_with_its_layers[v3:4x4]",),
    "pretraining/test_continued.py": (
        "test_a_decoder_is_continued_by_the_command_with_options_of_its_task",
        "test_a_finished_run_is_given_more_steps_by_the_command",
        "test_before_a_step_is_trained_what_other_options_prepared_is_prepared_again",
        "test_begins_with_all_parameters_at_step_0_with_a_new_optimizer",
        "test_goes_on_from_the_same_beginning_alone",
        "test_heads_that_are_missing_are_drawn_and_named_and_nothing_else",
    ),
    "pretraining/test_mixtures.py": (
        "test_a_resumed_run_is_the_run_that_nothing_stopped",
        "test_a_run_that_resumes_with_another_mixture",
        "test_other_commands_read_the_mixture_of_a_run",
    ),
    "pretraining/test_run.py": (
        "test_a_decoder_writes_texts_for_the_report",
        "test_text_of_which_nothing_is_held_out_is_trained_on_without_evaluation",
    ),
    "pretraining/test_summary.py": ("test_an_encoder_decoder_shows_what_it_makes_of_held_out_texts",),
    "report/test_page.py": ("test_a_name_is_shown_as_it_is_whatever_it_means_to_the_drawing",),
    "selfcheck/test_selfcheck.py": (
        "test_a_planted_fault_makes_its_own_row_fail",
        "test_on_one_device_what_needs_several_is_skipped",
        "test_the_command_prints_a_table_and_writes_a_file",
        "test_the_plan_of_a_step_has_two_ends",
        "test_two_hosts_check_a_slice_together",
    ),
    "strangers/test_command_line.py": ("test_pretrains_from_raw_text_and_goes_on",),
    "strangers/test_strangers.py": ("test_a_student_learns_from_a_teacher_that_is_written_once",),
    "strangers/test_windowed.py": (
        "test_it_generates_the_likeliest_tokens",
        "test_it_is_small",
        "test_it_is_trained_and_evaluated",
        "test_it_sees_what_its_condition_says",
        "test_the_command_line_takes_it",
    ),
    "systems/test_parity.py": (
        "test_a_padding_token_that_is_read_learns[bart]",
        "test_a_padding_token_that_is_read_learns[led]",
        "test_a_padding_token_that_is_read_learns[transformer]",
    ),
    "systems/test_plans.py": ("test_its_step_compiles_for_a_slice[gpt2]",),
    "test_buckets.py": ("test_a_bucket_that_cannot_be_used",),
    "test_compression_benchmark.py": ("test_the_forward_pass_of_a_run_is_measured",),
    "test_context_length.py": (
        "test_a_context_is_the_tokens_before_a_token_and_no_others",
        "test_a_decoder_reads_no_more_tokens_than_it_has_positions",
    ),
    "test_docs.py": ("test_commands_in_blocks_are_whole[finetuning]",),
    "test_long_attention.py": ("test_a_step_is_timed_and_its_memory_grows",),
    "test_main.py": (
        "TestSignals::test_while_it_traces_and_compiles",
        "test_programs_are_compiled_once_and_json_is_all_that_is_printed",
    ),
    "test_memory.py": ("test_a_memory_gives_what_all_tokens_that_reach_a_token_give",),
    "test_optional.py": ("test_no_file_of_tests_imports_torch_by_itself",),
    "test_outputs.py": ("test_a_file_that_the_command_wrote_is_written_again",),
    "test_pieces.py": ("test_a_piece_leaves_its_result_and_what_it_took",),
    "test_python_docs.py": ("test_the_page_is_one_program",),
    "test_rooms.py": ("test_jax_flax_optax_orbax_and_numpy_are_enough_to_import_and_to_measure",),
    "test_storage.py": (
        "test_a_killed_run_goes_on_to_the_same_end",
        "test_a_run_in_a_bucket_is_evaluated_embedded_and_reported",
    ),
    "tpu/test_docs.py": (
        "test_a_submission_in_dry_run",
        "test_the_walk_on_this_machine",
    ),
    "tpu/test_jobset.py": ("test_a_slice_is_a_job_and_a_host_a_pod[v3-8x8-tpu-v3-slice-16-4]",),
    "tpu/test_queue.py": (
        "test_a_job_is_followed_from_the_queue_to_its_end_and_given_back",
        "test_a_name_belongs_to_one_experiment_and_one_slice",
    ),
    "tpu/test_startup.py": (
        "test_a_host_knows_itself_by_its_metadata_and_speaks_with_its_own_identity",
        "test_a_host_that_cannot_install_says_so_and_ends_the_job",
        "test_a_mistake_ends_the_job_with_its_sentence",
        "test_an_old_python_is_replaced_by_uvs",
    ),
    "tpu/test_submit.py": (
        "test_a_dry_run_prints_every_call_complete_and_needs_nothing",
        "test_an_experiment_is_submitted_by_its_name",
        "test_equal_files_make_equal_archives_wherever_they_lie",
        "test_mistakes_cost_nothing",
        "test_packed_files_are_listed_with_their_sizes",
    ),
    "tpu/test_worker.py": ("test_what_is_run_again_and_what_is_not[0-done-1-]",),
    "training/checkpoints/test_checkpoints.py": (
        "test_killed_anywhere_in_a_save_it_leaves_a_checkpoint_that_is_whole",
    ),
    "training/optimizers/test_layer_rates.py": ("test_sharded_equals_unsharded",),
    "training/optimizers/test_other_rules.py": (
        "test_adafactor_of_stacked_layers_equals_adafactor_of_separate_layers",
    ),
    "training/optimizers/test_sharded_rules.py": ("test_sharded_equals_unsharded",),
    "training/test_bench.py": ("test_a_measure_that_this_machine_lacks_is_left_out",),
    "training/test_loop.py": (
        "test_sigkill_and_sigterm_in_a_process_of_its_own",
        "test_a_log_says_what_is_done_whatever_the_rhythm",
        "test_an_exception_anywhere_and_a_second_start_end_in_the_same_bits[11]",
        "test_an_objective_that_weighs_its_terms_is_judged_by_their_joint_loss_too",
        "test_profiles_the_steps_asked_for_up_to_the_last",
    ),
    "training/test_loss_inputs.py": (
        "test_an_evaluation_has_a_carry_a_batch_and_a_length_of_its_own",
        "test_collections_are_updated_by_every_microbatch_and_kept",
    ),
    "training/test_memory.py": (
        "test_an_allocation_that_fails_is_a_sentence",
        "test_the_trainer_asks_before_its_first_step",
    ),
    "training/test_placement.py": (
        "test_the_estimate_is_what_the_compiler_takes",
        "test_the_mesh_fits_the_slice_and_says_why",
        "test_the_mesh_of_the_published_run_trains_as_one_device_does",
    ),
    "training/test_program.py": ("test_a_run_and_its_plan_compile_the_step_with_the_options_of_the_device",),
    "training/test_recipe.py": ("test_twenty_steps_equal_the_published_recipe",),
    "training/test_rows.py": ("test_looked_up_rows_are_trained_as_the_whole_tables",),
    "training/test_step.py": ("test_microbatches_remember_the_same_tokens_and_vectors_of_words[transformer_xl]",),
    "training/test_tracking.py": ("test_the_library_itself_offline",),
}
"""File in tests/ -> names of its tests. A name without brackets stands for all cases of a function."""


def runs_by_night(name: str) -> bool:
    """Return true if the table has a test, or its function. name: pytest's name of it, without `tests/`."""
    file, _, test = name.partition("::")
    return test in BY_NIGHT.get(file, ()) or test.partition("[")[0] in BY_NIGHT.get(file, ())


def unknown(names: list[str]) -> list[str]:
    """Return the names in the table that no test has. names: all tests."""
    known = {*names} | {name.partition("[")[0] for name in names}
    listed = [f"{file}::{test}" for file, tests in BY_NIGHT.items() for test in tests]
    return [name for name in listed if name not in known]
