"""The metrics of GLUE (Wang et al., arXiv 1804.07461), over the predictions of a whole file."""

import warnings

import numpy as np


def classification(labels: np.ndarray, predictions: np.ndarray, classes: int) -> dict[str, float]:
    """accuracy, Matthews correlation and F1 of int [N] labels and predictions, 0..classes-1.

    With two labels `f1` is that of label 1, as GLUE's of MRPC and QQP; with more, `macro_f1` is the mean over
    the labels that occur.
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

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


def regression(targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Pearson and Spearman correlation and mean squared error of float [N]; a constant's correlation is NaN."""
    from scipy.stats import pearsonr, spearmanr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant or nearly constant input
        return {
            "pearson": float(pearsonr(targets, predictions).statistic),
            "spearman": float(spearmanr(targets, predictions).statistic),
            "mean_squared_error": float(np.mean(np.square(targets - predictions))),
        }
