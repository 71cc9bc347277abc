"""The declaration of a system: its kind, inputs, templates, parameter groups, cache, and its modules by purpose.

A model file ends with one declaration,

    SYSTEM = declare(System(BertConfig, Kind.ENCODER, {Purpose.PRETRAINING: BertForPreTraining, ...}, ...))

and `config.system` finds it by the class of the config. The config holds the sizes, the declaration all other facts.
The rest of the project names only a purpose, `config.module(Purpose.CAUSAL_LM, execution)`. If a system lacks a
purpose, `modules` has no entry for it, and `System.require` raises an error that lists the purposes of the system.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import flax.linen as nn

from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.template import Template
from plmjax.errors import UserError


class Purpose(enum.Enum):
    """A use of a model. A system may have a module for it.

    Each member has the end of the sentence "a model that ...", and the advice for a system that lacks the purpose. The
    arguments of a module are (config, execution), and others where a member names them.
    """

    PRETRAINING = "has a pretraining task", "train another model"
    """The module that is trained by the pretraining task of the system."""
    MASKED_TOKENS = "restores masked tokens", "use an encoder such as BERT"
    """The module returns scores over the vocabulary for every token, or for the tokens at `masked_positions`."""
    CAUSAL_LM = "writes text", "use a decoder or an encoder-decoder"
    """The module reads tokens that follow those in a cache and returns the next token's `scores`
    (layers/attention/cache.py).
    """
    SEQ2SEQ = "writes a text given another", "fine-tune an encoder-decoder, a GPT or a GPT-2"
    """The module of CAUSAL_LM, fine-tuned to generate a text from another text."""
    ENCODING = "has an encoder", "use an encoder"
    """The model without a head. Its name is `System.name`."""
    EMBEDDING = "embeds a text alone", "use BERT, RoBERTa, ALBERT, ELECTRA, ELMo or another encoder"
    """The module of ENCODING, if the token ids or the characters of one text are its only inputs."""
    SEQUENCE_CLASSIFICATION = "labels texts", "fine-tune an encoder, a GPT or a BART"
    """The module returns `num_labels` logits for every row; `num_labels` is the third argument."""
    TOKEN_CLASSIFICATION = "labels words", "fine-tune an encoder"
    """The module returns `num_labels` logits for every token; `num_labels` is the third argument. The fourth argument
    is true for a learned mix of all layers.
    """
    MULTIPLE_CHOICE = "ranks the choices of a question", "fine-tune an encoder or a GPT"
    """The module returns one score for every choice of a question."""
    QUESTION_ANSWERING = "finds answers in a text", "fine-tune an encoder, a GPT or a BART"
    """The module returns two scores for every token: as the first and as the last token of an answer."""
    ANSWER_SEARCH = "searches a text for answers", "fine-tune an XLNet"
    """The module returns the likeliest starts of an answer, the likeliest ends for each, and a score for no answer."""
    MULTI_VIEW = "learns from restricted views of a sentence", "begin with experiments/cvt.py"
    """The module predicts from parts of a sentence. The third argument is a tuple of the heads of the tasks."""

    def __init__(self, words: str, advice: str) -> None:
        self.words, self.advice = words, advice


class Kind(enum.StrEnum):
    """The kind of a model. Its value is the name of the kind in messages."""

    ENCODER = "an encoder"
    DECODER = "a decoder"
    ENCODER_DECODER = "an encoder-decoder"
    WORD_VECTORS = "word vectors"


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Parameters that have one learning rate and are unfrozen together.

    prefixes: prefixes of their paths (`bert/embeddings`); a parameter belongs to the group with the longest prefix.
    index: for parameters of stacked layers, the index along the logical axis "layers"; None takes all layers.
    """

    prefixes: tuple[str, ...]
    index: int | None = None


def group_of(path: str, groups: Sequence[ParameterGroup]) -> tuple[str, int | None] | None:
    """Return the longest prefix of a parameter's path and the index of its group; None if it is in no group."""
    prefixes = {
        prefix: group.index for group in groups for prefix in group.prefixes if f"{path}/".startswith(f"{prefix}/")
    }
    longest = max(prefixes, key=len, default=None)
    return None if longest is None else (longest, prefixes[longest])


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """A system, as its model file declares it.

    config: class of its configs; each config has the sizes of one model.
    kind: an encoder-decoder reads a source; all other kinds read one row.
    modules: dict from purpose to the class or function that makes the module; its arguments are described at `Purpose`.
    name: first name in the paths of the encoder's parameters; None if the encoder is not separate from the heads.
    reads: inputs of the encoder for every token: `input_ids`, `characters` or both.
    returns: additional outputs of the modules with heads: `scores` of the next token, given the tokens before it.
    template: function from config to the layout of one text or a pair as a row; None for a system that reads no texts.
    parts: function from config to the parameter groups below the head, from the bottom to the top. Parameters in no
        group belong to the head. Stacked layers have a group for each index, separate layers a group for each prefix,
        and shared layers one group.
    token_table: path of the parameter whose first V rows are the token embeddings; None where no tokens can be added.
    token_vectors: value of `vectors`, for a system whose embeddings are not the rows of a table.
    derived: function from the parameters of a checkpoint, by path, to additional parameters that are computed from
        them, for modules that need another form than the one of pretraining; none by default.
    cache: function from config, number of rows, capacity in tokens per row and execution to an empty cache, for a
        module that generates text. It returns None if the cache is made when the source of a row is read. None for a
        system without a cache.
    packs: true if a row may have several packed sequences, which are read independently.
    backwards: true if the system reads texts from their end to their beginning.
    instead: advice for a purpose that the system lacks, in place of the advice of the purpose.
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
    derived: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda params: {}
    cache: Callable[[Any, int, int, Execution], Cache | None] | None = None
    packs: bool = True
    backwards: bool = False
    instead: str = ""

    def __contains__(self, purpose: Purpose) -> bool:
        """Return True if the system has a module for a purpose."""
        return purpose in self.modules

    def __str__(self) -> str:
        """Return the name of the system in messages: `BertConfig, an encoder`."""
        return f"{self.config.__name__}, {self.kind}" + (" that reads texts from their end" if self.backwards else "")

    @property
    def vectors(self) -> Callable[[Mapping[str, Any]], Any] | None:
        """Function from the parameters, a dict by path, to the token embeddings; None for a system without any.

        The embeddings are the first V rows of the function's result, [rows D].
        """
        table = self.token_table
        return self.token_vectors or (None if table is None else lambda params: params[table])

    def module(self, purpose: Purpose, config: Any, execution: Execution, *args: Any, **options: Any) -> nn.Module:
        """Return the module for a purpose. An encoder alone gets the name that it has within the other modules, `name`.

        Raises:
            UserError: the system has no module for the purpose.
        """
        self.require(purpose)
        if purpose in (Purpose.ENCODING, Purpose.EMBEDDING):
            options["name"] = self.name
        return self.modules[purpose](config, execution, *args, **options)

    def require(self, purpose: Purpose, place: str = "") -> None:
        """Raise UserError if the system lacks a purpose.

        place: the location of the model for the message, such as ` in CHECKPOINT`.
        """
        if purpose not in self:
            self.refuse(purpose.words, place, self.instead or purpose.advice)

    def refuse(self, words: str, place: str = "", advice: str = "use another model") -> NoReturn:
        """Raise UserError, whose message says that the system is not "a model that {words}"."""
        raise UserError(f"Expected a model that {words}{place}, found {self}; {advice}.")

    def purposes(self, module: nn.Module) -> list[Purpose]:
        """Return the purposes of a module.

        The list is empty for the module of a checkpoint that has only some of the heads.
        """
        return [purpose for purpose, made in self.modules.items() if _made_class(made) is type(module)]


def _made_class(made: Callable[..., nn.Module]) -> Any:
    return made.func if isinstance(made, functools.partial) else made


_SYSTEMS: dict[type, System] = {}


def declare(system: System) -> System:
    """Register a system by the class of its config, and return it."""
    _SYSTEMS[system.config] = system
    return system


def system_of(config: type) -> System:
    """Return the system of a config's class, or of its nearest base class that has one.

    Raises:
        TypeError: no file declares a system for the class.
    """
    for each in config.__mro__:
        if each in _SYSTEMS:
            return _SYSTEMS[each]
    raise TypeError(f"Expected a declared system for {config.__name__}, found none; end its file with declare(...).")
