"""Text-to-text pretraining (Raffel et al. 2020): a source and a target made of one text, one file for each way."""
