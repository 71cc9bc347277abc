"""Metrics of labels and numbers over the predictions of a file, as in GLUE (Wang et al., arXiv 1804.07461)."""

import warnings

import chex
import numpy as np


def scores(labels: np.ndarray, predictions: np.ndarray, classes: int) -> dict[str, float]:
    """Return accuracy, Matthews correlation and F1 of int [N] labels and predictions, 0..classes-1.

    With two labels, `f1` is the F1 of label 1, as in GLUE for MRPC and QQP. With more labels, `macro_f1` is the mean
    over the labels that occur.
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    chex.assert_rank([labels, predictions], 1)
    chex.assert_equal_shape([labels, predictions])

    binary = classes == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one label only
        return {
            "accuracy": float(accuracy_score(labels, predictions)),
            "f1" if binary else "macro_f1": float(
                f1_score(labels, predictions, average="binary" if binary else "macro", zero_division=0)
            ),
            "matthews": float(matthews_corrcoef(labels, predictions)),
        }


def label_sets(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Return micro F1, macro F1 and the fraction of exact matches, of bool [N labels].

    Micro F1 is over all labels together, macro F1 is the mean over the labels. A label that neither occurs nor is
    predicted has an F1 of 0.
    """
    from sklearn.metrics import f1_score

    chex.assert_rank([labels, predictions], 2)
    chex.assert_equal_shape([labels, predictions])
    return {
        "micro_f1": float(f1_score(labels, predictions, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(labels, predictions, average="macro", zero_division=0)),
        "accuracy": float(np.mean(np.all(labels == predictions, axis=-1))),
    }


def regression(targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Return Pearson and Spearman correlation and mean squared error of float [N].

    The correlation of a constant, or of one row, is NaN.
    """
    from scipy.stats import pearsonr, spearmanr

    chex.assert_rank([targets, predictions], 1)
    chex.assert_equal_shape([targets, predictions])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant or nearly constant input
        return {
            "pearson": float(pearsonr(targets, predictions).statistic) if len(targets) > 1 else float("nan"),
            "spearman": float(spearmanr(targets, predictions).statistic),
            "mean_squared_error": float(np.mean(np.square(targets - predictions))),
        }
