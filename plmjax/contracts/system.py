"""The declaration of a system: its kind, its inputs, its rows of text, its parts, and its modules by their purpose.

A model file ends with one declaration,

    SYSTEM = declare(System(BertConfig, Kind.ENCODER, {Purpose.PRETRAINING: BertForPreTraining, ...}, ...))

and `config.system` finds it by the config's class. The config holds the numbers, the declaration all else: the rest of
the project asks for a purpose, `config.module(Purpose.WRITING, execution)`. A purpose that a system does not have is an
absent entry, which `System.require` turns into a sentence that names those it has.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import flax.linen as nn

from plmjax.contracts.execution import Execution
from plmjax.contracts.template import Template
from plmjax.errors import UserError


class Purpose(enum.Enum):
    """A use of a model, for which a system may have a module.

    Each member holds the words for a sentence, "a model that ...", and the advice where a system lacks the purpose.
    A module is made from (config, execution) and from what its purpose adds, which stands beside each member here.
    """

    PRETRAINING = "has a pretraining task", "train another model"
    """The module that the system's own pretraining task trains."""
    MASKED_TOKENS = "restores masked tokens", "use an encoder such as BERT"
    """Gives every token, or those at `masked_positions`, scores over the vocabulary."""
    WRITING = "writes text", "use a decoder or an encoder-decoder"
    """Reads tokens after those in a cache and gives the next one `scores` (layers/attention/cache.py)."""
    TEXT_TO_TEXT = "writes a text given another", "fine-tune an encoder-decoder, a GPT or a GPT-2"
    """The same module, where it learns to write a text given another."""
    ENCODING = "has an encoder", "use an encoder"
    """The model without a head; named `System.name`."""
    EMBEDDING = "embeds a text alone", "use BERT, RoBERTa, ALBERT, ELECTRA, ELMo or another encoder"
    """The same module, where the ids or the characters of one text are all that it reads."""
    TEXT_LABELS = "labels texts", "fine-tune an encoder, a GPT or a BART"
    """Gives every row `num_labels` numbers, the third argument."""
    TOKEN_LABELS = "labels words", "fine-tune an encoder"
    """Gives every token `num_labels` numbers, the third argument; the fourth is whether the layers are mixed."""
    CHOICES = "ranks the choices of a question", "fine-tune an encoder or a GPT"
    """Gives every choice of a question one number."""
    ANSWERS = "finds answers in a text", "fine-tune an encoder, a GPT or a BART"
    """Gives every token two scores, as the first and as the last of an answer."""
    VIEWS = "learns from restricted views of a sentence", "begin with experiments/cvt.py"
    """Predicts from parts of a sentence; the third argument are the heads of the tasks."""

    def __init__(self, words: str, advice: str) -> None:
        """Takes the two texts of a member apart."""
        self.words, self.advice = words, advice


class Kind(enum.StrEnum):
    """The kind of a model; its value names it in messages."""

    ENCODER = "an encoder"
    DECODER = "a decoder"
    ENCODER_DECODER = "an encoder-decoder"
    WORD_VECTORS = "word vectors"


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Parameters that have one learning rate and are unfrozen together.

    prefixes: what their paths begin with (`bert/embeddings`); a parameter belongs to the group with the longest prefix.
    index: the index along the logical axis "layers" of parameters that hold a stack of layers; None takes all of them.
    """

    prefixes: tuple[str, ...]
    index: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """A system, as its model file declares it.

    config: class of its configs, each of which holds the sizes of one model.
    kind: an encoder-decoder is given a source; all others one row.
    modules: purpose -> class, or function, that makes the module; see `Purpose` for its arguments.
    name: first name in the paths of the encoder's parameters; None for a model without an encoder apart from its heads.
    reads: inputs of the encoder for every token: `input_ids`, `characters` or both.
    returns: outputs of its heads besides their own: `scores`, of the next token given those before it.
    template: config -> how one text or a pair is laid out as a row; None for a system that reads no texts.
    parts: config -> the parameters below the head, from the bottom to the top; those of no group belong to the head.
        Stacked layers are one group for each index, separate layers one for each prefix, shared layers one group.
    token_table: path of the parameter whose first V rows are the vectors of tokens; None where no tokens can be added.
    token_vectors: as `vectors`, for a system whose vectors of tokens are not the rows of a table.
    packs: whether a row may hold several packed sequences, each of which is read by itself.
    backwards: whether it reads texts from their end to their beginning.
    instead: advice for a purpose that is absent, where there is a better one than the purpose's own.
    """

    config: type
    kind: Kind
    modules: Mapping[Purpose, Callable[..., nn.Module]]
    name: str | None = None
    reads: tuple[str, ...] = ("input_ids",)
    returns: tuple[str, ...] = ()
    template: Callable[[Any], Template] | None = None
    parts: Callable[[Any], tuple[ParameterGroup, ...]] = lambda config: ()
    token_table: str | None = None
    token_vectors: Callable[[Mapping[str, Any]], Any] | None = None
    packs: bool = True
    backwards: bool = False
    instead: str = ""

    def __contains__(self, purpose: Purpose) -> bool:
        """Whether the system has a module for a purpose."""
        return purpose in self.modules

    def __str__(self) -> str:
        """Its name in messages: `BertConfig, an encoder`."""
        return f"{self.config.__name__}, {self.kind}" + (" that reads texts from their end" if self.backwards else "")

    @property
    def vectors(self) -> Callable[[Mapping[str, Any]], Any] | None:
        """Parameters by path -> the vectors of tokens, the first V of [rows D]; None for a system without."""
        table = self.token_table
        return self.token_vectors or (None if table is None else lambda params: params[table])

    def module(self, purpose: Purpose, config: Any, execution: Execution, *args: Any, **options: Any) -> nn.Module:
        """The module for a purpose; the encoder has the name that its parameters have in every module.

        Raises:
            UserError: the system has none.
        """
        self.require(purpose)
        if purpose in (Purpose.ENCODING, Purpose.EMBEDDING):
            options["name"] = self.name
        return self.modules[purpose](config, execution, *args, **options)

    def require(self, purpose: Purpose, place: str = "") -> None:
        """Raises UserError, one sentence with all purposes that are there, where the system lacks one.

        place: of the model, for the sentence: ` in CHECKPOINT`.
        """
        if purpose not in self:
            self.refuse(purpose.words, place, self.instead or purpose.advice)

    def refuse(self, words: str, place: str = "", advice: str = "use another model") -> NoReturn:
        """Raises UserError for "a model that ...", which this system is not."""
        *others, last = [purpose.words for purpose in Purpose if purpose in self] or ["has no module"]
        present = f"{', '.join(others)} and {last}" if others else last
        raise UserError(f"Expected a model that {words}{place}, found {self}, which {present}; {advice}.")

    def purposes(self, module: nn.Module) -> list[Purpose]:
        """The purposes that a module is made for; none, if it is one of a checkpoint that holds a part of the heads."""
        return [purpose for purpose, made in self.modules.items() if _made_class(made) is type(module)]


def _made_class(made: Callable[..., nn.Module]) -> Any:
    return made.func if isinstance(made, functools.partial) else made


_SYSTEMS: dict[type, System] = {}


def declare(system: System) -> System:
    """Makes a system known by its config's class, and returns it."""
    _SYSTEMS[system.config] = system
    return system


def system_of(config: type) -> System:
    """The system of a config's class, or of the nearest class that it is derived from.

    Raises:
        TypeError: no file declares one.
    """
    for each in config.__mro__:
        if each in _SYSTEMS:
            return _SYSTEMS[each]
    raise TypeError(f"Expected a declared system for {config.__name__}, found none; end its file with declare(...).")
