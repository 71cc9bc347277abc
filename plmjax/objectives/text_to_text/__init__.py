"""Text-to-text pretraining (Raffel et al. 2020): source and target come from one text.

Each objective has its own file.
"""
