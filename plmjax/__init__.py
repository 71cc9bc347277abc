"""Pretrained language models in JAX and Flax, from raw text to a trained, resumed, planned and exported model.

    load, save                  a model, its parameters and its tokenizer, from a run or a transformers folder
    pretrain, finetune          make a run, or resume it
    batches                     the batches of a run, for a training loop of one's own
    evaluate, predict           metrics of a run, and predictions of a task
    embed, generate             vectors of texts, and generated texts
    plan                        memory, time and cost of a run on a TPU slice

JAX is imported only when the first of these functions is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plmjax import experiment
    from plmjax.generation.generate import generate
    from plmjax.inference.embed import embed
    from plmjax.inference.evaluate import evaluate
    from plmjax.inference.models import load, save
    from plmjax.inference.predict import predict
    from plmjax.planning.plan import plan
    from plmjax.runs.batches import batches
    from plmjax.runs.finetuning import finetune
    from plmjax.runs.pretraining import pretrain

from plmjax import libraries, platform

__version__ = libraries.VERSION

libraries.quiet()
platform.choose()

_CALLS = {
    "load": "inference.models",
    "save": "inference.models",
    "pretrain": "runs.pretraining",
    "finetune": "runs.finetuning",
    "batches": "runs.batches",
    "evaluate": "inference.evaluate",
    "predict": "inference.predict",
    "embed": "inference.embed",
    "generate": "generation.generate",
    "plan": "planning.plan",
}
"""Name of a public function -> the module that defines it."""
__all__ = [
    "__version__",
    "batches",
    "embed",
    "evaluate",
    "experiment",
    "finetune",
    "generate",
    "load",
    "plan",
    "predict",
    "pretrain",
    "save",
]


def __getattr__(name: str) -> Any:
    """Import a public function, or the module `experiment`, when it is first used."""
    if name == "experiment":
        return importlib.import_module("plmjax.experiment")
    if name in _CALLS:
        return getattr(importlib.import_module(f"plmjax.{_CALLS[name]}"), name)
    raise AttributeError(f"module 'plmjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
