"""Training steps beside those of another library, or of another form, by turns: time, FLOPs and memory.

    python benchmarks/steps.py bert gpt2 t5 awd_lstm [--layers 12] [--rows 4] [--repeats 5]
    python benchmarks/steps.py electra --rows 4
    python benchmarks/steps.py transformer_xl xlnet [--topology v5e:2x2]
    python benchmarks/steps.py bert_large_512_cudnn modernbert_base_1024_cudnn gpt2_small_1024_cudnn [--unroll 24]

`STEPS` tells what each step is, and what it is compared with. All steps clip by the global norm and have dropout 0.1.
Each form has a process of its own, which takes its steps on synthetic rows by turns. The last line of a step has the
ratio of the time of all other forms together to that of the first.

On the CPU, in float32, a turn is one step. It is measured in CPU-seconds of the process, which a busy machine distorts
less than the time by the clock. Each process is bound to one core, because with more cores the threads of OpenMP count
the time they wait for each other. Also printed are the model FLOPs in closed form, and the FLOPs and the temporary
memory of the compiled program. Linux only.

On a GPU, with bfloat16 products and float32 parameters, a turn is twenty steps, and the time is that by the clock. The
MFU is the model's FLOPs a second by those of the GPU's data sheet. PyTorch has torch.compile, scaled-dot-product
attention, autocast and the fused AdamW. The steps named `cudnn` have cuDNN's attention in plmjax, and no dropout of
attention in either program; after them the largest difference between cuDNN's attention and the dense one is printed.

With --topology nothing is run: the refined estimate of each form's step on a TPU slice, which computes in bfloat16.
"""

import argparse
import functools
import importlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from one_device import compiled

from plmjax import platform
from plmjax.contracts.bias_terms import ScoreArray
from plmjax.contracts.mask_terms import Causal, KeyMask, MaskTerms
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Chunks, ContiguousStreams, ContinuedPairs, FullSentences, SentencePairs, SingleSegment
from plmjax.experiment import Data, Experiment, Training
from plmjax.layers.attention.backends import BACKENDS
from plmjax.models import transformer_xl as transformer_xl_model
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.models.bert import BertConfig
from plmjax.models.electra import ElectraConfig, ElectraForReplacedTokenDetection
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.modernbert.modernbert import ModernBertConfig
from plmjax.models.t5 import T5Config
from plmjax.models.transformer_xl import TransformerXlConfig
from plmjax.models.xlnet import attention as xlnet_attention
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.electra import ElectraPretraining, detection_sums
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import LossSums, apply
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.objectives.transformer_xl import TransformerXlPretraining
from plmjax.parallel import topologies
from plmjax.planning.plan import plan
from plmjax.training.optimizers import AdamW, BertAdamW, StochasticGradientDescent

WITHOUT_POSITIONS = "without positions"
TERMS = (
    (transformer_xl_model, "ContentBias"),
    (transformer_xl_model, "PositionalScores"),
    (xlnet_attention, "ContentBias"),
    (xlnet_attention, "PositionalScores"),
    (xlnet_attention, "SegmentScores"),
)
"""Terms that relative positions add to the product of query and key."""


class Sizes(NamedTuple):
    """Layers, and rows and tokens of a batch. predictions: masked positions of a row."""

    layers: int
    rows: int
    length: int
    predictions: int = 0


class Step(NamedTuple):
    """A step, and the steps to compare it with.

    ours: name of a form -> function from (sizes, options of training) to its experiment.
    theirs: the function of pytorch_steps.py, and its further arguments.
    """

    about: str
    sizes: Sizes
    ours: dict[str, Callable[..., Experiment]]
    theirs: str = ""
    extra: Mapping[str, Any] = MappingProxyType({})

    @property
    def gpu(self) -> bool:
        """True for a step on a GPU."""
        return bool(self.extra.get("gpu"))

    @property
    def forms(self) -> list[str]:
        """Names of all forms, the one that is compared first."""
        return [*self.ours, *(["PyTorch"] if self.theirs else [])]


def _run(sizes: Sizes, model: Any, objective: Any, *, layout: Any, optimizer: Any, **training: Any) -> Experiment:
    data = Data(layout, sequence_length=sizes.length)
    return Experiment(model, objective, data=data, optimizer=optimizer, training=Training(1000, sizes.rows, **training))


def bert(sizes: Sizes, make: Callable[..., BertConfig] = BertConfig.base, dropout: float = 0.1, **training: Any) -> Any:
    """Return a run of BERT. dropout: that of attention."""
    model = make(num_hidden_layers=sizes.layers, attention_probs_dropout_prob=dropout)
    return _run(
        sizes,
        model,
        BertPretraining(max_predictions=sizes.predictions),
        layout=SentencePairs(),
        optimizer=BertAdamW(),
        **training,
    )


def bert_large(sizes: Sizes, dropout: float = 0.1, **training: Any) -> Experiment:
    """Return a run of BERT-Large."""
    return bert(sizes, BertConfig.large, dropout, **training)


def modernbert(sizes: Sizes, dropout: float = 0.0, **training: Any) -> Experiment:
    """Return a run of ModernBERT-Base with the dropout of its recipe: of the output of attention, 0.1.

    dropout: that of attention.
    """
    model = ModernBertConfig.base(num_hidden_layers=sizes.layers, attention_dropout=dropout)
    objective = MaskedLanguageModel(rate=0.3, max_predictions=sizes.predictions)
    return _run(sizes, model, objective, layout=FullSentences(), optimizer=AdamW(), **training)


def gpt2(sizes: Sizes, dropout: float = 0.1, **training: Any) -> Experiment:
    """Return a run of GPT-2 small."""
    return _run(
        sizes,
        Gpt2Config.small(n_layer=sizes.layers, attn_pdrop=dropout),
        NextToken(),
        layout=Chunks(),
        optimizer=AdamW(),
        **training,
    )


def t5(sizes: Sizes) -> Experiment:
    """Return a run of T5-small, whose rows become sources and targets in each step."""
    model = T5Config.small(num_layers=sizes.layers, num_decoder_layers=sizes.layers)
    return _run(sizes, model, SpanCorruption(), layout=Chunks(), optimizer=AdamW())


def awd_lstm(sizes: Sizes) -> Experiment:
    """Return a run of AWD-LSTM with the sizes of WikiText-2, both penalties and plain gradients."""
    rule = StochasticGradientDescent(learning_rate=1.0, clip_norm=0.25, weight_decay=1.2e-6)
    return _run(
        sizes,
        AwdLstmConfig.wikitext2(num_layers=sizes.layers),
        AwdLstmPretraining(),
        layout=ContiguousStreams(),
        optimizer=rule,
    )


class Generator(ElectraPretraining):
    """The masked language model of ELECTRA alone."""

    def module(self, config, execution):
        return config.module(Purpose.MASKED_TOKENS, execution)

    def weights(self, batch):
        return {"mlm": super().weights(batch)["mlm"]}

    def sums(self, module, loss_inputs, batch, key, *, training):
        found = apply(self, module, loss_inputs, batch=batch, key=key, training=training)
        return MaskedLanguageModel.masked_sums(found.logits, batch)

    def train_flops(self, config, batch):
        return config.train_flops(*batch["input_ids"].shape, self.predictions(batch))


class Discriminator(ElectraPretraining):
    """ELECTRA's replaced token detection alone, with a seventh of the tokens replaced."""

    def module(self, config, execution):
        return ElectraForReplacedTokenDetection(config, execution)

    def model_inputs(self, batch):
        return {name: field for name, field in super().model_inputs(batch).items() if name != "masked_positions"}

    def corrupt(self, batch, key, vocabulary, constants=()):
        fake = batch["input_ids"] % 7 == 0
        return batch | {"input_ids": (batch["input_ids"] + fake) % vocabulary.size, "fake": fake}

    def weights(self, batch):
        return {"rtd": (batch["segment_ids"] > 0).sum().astype("float32")}

    def sums(self, module, loss_inputs, batch, key, *, training):
        found = apply(self, module, loss_inputs, batch=batch, key=key, training=training)
        found = detection_sums(found.logits, batch, batch["fake"])
        return LossSums(found.losses, found.metrics)

    def train_flops(self, config, batch):
        return ElectraPretraining().train_flops(config, batch) - Generator().train_flops(config, batch)


def electra(sizes: Sizes, objective: type[ElectraPretraining] = ElectraPretraining) -> Experiment:
    """Return a run of ELECTRA-Small, or of one of its two networks."""
    return _run(
        sizes,
        ElectraConfig.small(num_hidden_layers=sizes.layers),
        objective(),
        layout=SingleSegment(),
        optimizer=BertAdamW(),
    )


def transformer_xl(sizes: Sizes) -> Experiment:
    """Return a run of Transformer-XL with the base sizes of enwik8 and a memory as long as a row."""
    model = TransformerXlConfig.enwik8_base(n_layer=sizes.layers, mem_len=sizes.length)
    return _run(sizes, model, TransformerXlPretraining(), layout=ContiguousStreams(), optimizer=BertAdamW())


def xlnet(sizes: Sizes) -> Experiment:
    """Return a run of XLNet with its base sizes and a memory as long as a row."""
    objective = PermutationLanguageModel(memory_length=sizes.length)
    return _run(
        sizes, XlnetConfig.base(n_layer=sizes.layers), objective, layout=ContinuedPairs(), optimizer=BertAdamW()
    )


T5_ROW = SpanCorruption().row_length(128)
CUDNN = {"gpu": True, "dropout": 0.0}
"""On a GPU with cuDNN's attention, which has no dropout."""
LARGE = {"width": 1024}
STEPS = {
    "bert": Step("BERT-Base beside transformers", Sizes(12, 4, 128, 20), {"plmjax": bert}, "bert"),
    "modernbert": Step(
        "ModernBERT-Base beside transformers", Sizes(22, 2, 256, 77), {"plmjax": modernbert}, "modernbert"
    ),
    "gpt2": Step("GPT-2 small beside transformers", Sizes(12, 4, 128), {"plmjax": gpt2}, "gpt2"),
    "t5": Step(
        "T5-small, sources of 128 and targets of 29, beside transformers", Sizes(6, 8, T5_ROW), {"plmjax": t5}, "t5"
    ),
    "awd_lstm": Step("AWD-LSTM beside torch.nn.LSTM", Sizes(3, 20, 35), {"plmjax": awd_lstm}, "awd_lstm"),
    "electra": Step(
        "ELECTRA-Small beside its two networks alone",
        Sizes(12, 8, 128),
        {
            "joint": electra,
            "generator": lambda sizes: electra(sizes, Generator),
            "discriminator": lambda sizes: electra(sizes, Discriminator),
        },
    ),
    "transformer_xl": Step(
        "Transformer-XL with a memory, beside scores without positions",
        Sizes(2, 4, 256),
        {"positions": transformer_xl, WITHOUT_POSITIONS: transformer_xl},
    ),
    "xlnet": Step(
        "XLNet with a memory, beside scores without positions",
        Sizes(2, 4, 256),
        {"positions": xlnet, WITHOUT_POSITIONS: xlnet},
    ),
    "bert_base_512": Step("a GPU beside PyTorch", Sizes(12, 64, 512, 76), {"plmjax": bert}, "bert", {"gpu": True}),
    "bert_large_512": Step("the same", Sizes(24, 32, 512, 76), {"plmjax": bert_large}, "bert", {"gpu": True} | LARGE),
    "bert_large_512_cudnn": Step("the same", Sizes(24, 32, 512, 76), {"plmjax": bert_large}, "bert", CUDNN | LARGE),
    "modernbert_base_1024_cudnn": Step(
        "the same", Sizes(22, 16, 1024, 308), {"plmjax": modernbert}, "modernbert", CUDNN
    ),
    "gpt2_small_1024": Step("the same", Sizes(12, 16, 1024), {"plmjax": gpt2}, "gpt2", {"gpu": True}),
    "gpt2_small_1024_cudnn": Step("the same", Sizes(12, 16, 1024), {"plmjax": gpt2}, "gpt2", CUDNN),
}


@contextmanager
def no_terms() -> Iterator[None]:
    """Compute attention scores without bias terms in the programs that are traced inside."""
    with ExitStack() as stack:
        for module, name in TERMS:
            nothing = ScoreArray(jnp.zeros((1, 1, 1, 1)))
            stack.enter_context(mock.patch.object(module, name, lambda *_, nothing=nothing: nothing))
        yield


def experiment_of(name: str, form: str, sizes: Sizes, unroll: int = 0) -> Experiment:
    """Return the experiment of one of our forms."""
    step, training = STEPS[name], {}
    if step.gpu:
        attention = "cudnn" if step.extra.get("dropout") == 0 else "dense"
        training = {
            "attention": attention,
            "unroll": unroll,
            "platform": "gpu",
            "dropout": step.extra.get("dropout", 0.1),
        }
    return step.ours[form](sizes, **training)


def our_steps(run: Experiment, form: str) -> tuple[Callable[[int], None], dict[str, float]]:
    """Return the steps that `plmjax pretrain` takes, and the FLOPs and the temporary bytes of one."""
    phase, size = run.resolved_phases[0], run.model.vocab_size
    with no_terms() if form == WITHOUT_POSITIONS else nullcontext():
        program = compiled(run, Vocabulary.placeholder(size))
    batch = jax.device_put(run.data.layout.synthetic(phase.batch_size, phase.sequence_length, size, 0))
    train, state = program.train, program.initialize(0)

    def take(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state, _ = train(state, batch)
        jax.block_until_ready(state)

    facts = {"model": run.training_objective.train_flops(run.model, program.batch)}
    facts |= {"compiled": train.cost_analysis()["flops"], "bytes": train.memory_analysis().temp_size_in_bytes}
    return take, facts


def _work(name: str, form: str, sizes: Sizes, *, unroll: int, pipe: Connection) -> None:
    """Send the facts of a form, then the time of a step for every message."""
    step = STEPS[name]
    if not step.gpu:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if form in step.ours:
        platform.keep_freed_memory()  # as the command does
        take, facts = our_steps(experiment_of(name, form, sizes, unroll), form)
    else:
        lengths = SpanCorruption().lengths(sizes.length) if name == "t5" else (sizes.length,)
        predictions = {"predictions": sizes.predictions} if sizes.predictions else {}
        make = getattr(importlib.import_module("pytorch_steps"), step.theirs)
        take, facts = make(sizes.layers, sizes.rows, *lengths, **predictions, **step.extra), {}
    pipe.send(facts)
    clock, count = (time.perf_counter, 20) if step.gpu else (time.process_time, 1)
    while pipe.recv():
        begin = clock()
        take(count)
        pipe.send((clock() - begin) / count)


def measured(name: str, sizes: Sizes, options: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, dict]]:
    """Return form -> seconds of a step in each turn, and form -> its facts. Two turns warm up."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for form in STEPS[name].forms:
        pipes[form], end = context.Pipe()
        how = {"unroll": options.unroll, "pipe": end}
        processes.append(context.Process(target=_work, args=(name, form, sizes), kwargs=how, daemon=True))
        processes[-1].start()
        end.close()  # so that the wait ends if a worker dies
    facts = {form: pipe.recv() for form, pipe in pipes.items()}
    seconds: dict[str, list[float]] = {form: [] for form in pipes}
    for turn in range(-2, options.repeats):
        for form, pipe in pipes.items():
            pipe.send(True)
            taken = pipe.recv()
            if turn >= 0:
                seconds[form].append(taken)
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()
    return seconds, facts


def show(name: str, sizes: Sizes, options: argparse.Namespace) -> None:
    """Print a line for each form of a step, and the ratio."""
    seconds, facts = measured(name, sizes, options)
    gpu, middle = STEPS[name].gpu, {form: statistics.median(times) for form, times in seconds.items()}
    sheet = topologies.peak_flops(jax.devices()[0].device_kind) if gpu else None
    for form, times in seconds.items():
        scale, places = (1e3, 1) if gpu else (1, 3)
        cells = [
            f"{scale * middle[form]:.{places}f}",
            f"{scale * min(times):.{places}f} to {scale * max(times):.{places}f}",
        ]
        if gpu:
            rate = max(each.get("model", 0) for each in facts.values()) / middle[form]
            cells.append(f"{rate / sheet:.0%}" if sheet else "-")
        else:
            numbers = ("model", 1e9, ".2f"), ("compiled", 1e9, ".1f"), ("bytes", 2**20, ".0f")
            own = facts[form]
            cells += [format(own[fact] / unit, form_) if fact in own else "" for fact, unit, form_ in numbers]
        print(f"| {name}, {sizes.rows} x {sizes.length} | {form} | {' | '.join(cells)} |", flush=True)
    first, *others = middle.values()
    ratio = sum(others) / first
    print(f"| {name} | times as fast as the others together | {ratio:.3f} |", flush=True)


def show_estimates(name: str, sizes: Sizes, topology: str) -> None:
    """Print the refined estimate of each of our forms on a TPU slice."""
    ends = []
    for form in STEPS[name].ours:
        with no_terms() if form == WITHOUT_POSITIONS else nullcontext():
            refined = plan(experiment_of(name, form, sizes), topology)["phases"][0]["refined"]
        ends.append([refined[end]["step_seconds"] for end in ("fast", "slow")])
        print(f"| {name} | {form} | {' to '.join(f'{1e3 * one:.2f}' for one in ends[-1])} |", flush=True)
    if len(ends) > 1:
        first, *others = ends
        shares = (f"{1 - sum(each) / one:.0%}" for one, *each in zip(first, *others, strict=True))
        print(f"| {name} | the first without the others | {' to '.join(shares)} of its time |", flush=True)


def cudnn_difference() -> float:
    """Return the largest difference of cuDNN's and the dense backend's outputs and gradients, by the largest of all.

    The rows are random, with a mask of padding and with a causal one.
    """
    drawn = jax.random.normal(jax.random.key(0), (4, 4, 512, 8, 64))
    rows = tuple(each.astype(jnp.bfloat16) for each in drawn * jnp.array([0.125, 1, 1, 1])[:, None, None, None, None])
    padded = KeyMask((jnp.arange(512) < jnp.array([512, 300, 64, 7])[:, None]).astype(jnp.int32))
    found = []
    for mask_terms in (MaskTerms((padded,)), MaskTerms((Causal(),))):
        both = []
        for name in ("dense", "cudnn"):
            given = {"mask_terms": mask_terms, "terms": (), "rate": 0.0, "dropout_key": None}
            attend = functools.partial(BACKENDS[name], **given)
            context, pull = jax.vjp(attend, *rows[:3])
            both.append([each.astype(jnp.float32) for each in (context, *pull(rows[3]))])
        found += [float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(a))) for a, b in zip(*both, strict=True)]
    return max(found)


def main() -> None:
    """Print a table of the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="+", choices=STEPS, help="; ".join(f"{n}: {s.about}" for n, s in STEPS.items()))
    parser.add_argument("--layers", type=int, help="layers, in place of those of the step")
    parser.add_argument("--rows", type=int, help="rows of a batch, in place of those of the step")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each form")
    parser.add_argument("--unroll", type=int, default=0, help="layers unrolled on a GPU; 0 for the default of a run")
    parser.add_argument("--topology", default="", help="estimate the steps for this TPU slice, and run nothing")
    options = parser.parse_args()
    gpu = any(STEPS[name].gpu for name in options.steps)
    os.environ |= (
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if gpu else {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    )
    if options.topology:
        print("| step | form | ms, refined |\n|---|---|---|")
    elif gpu:
        print("| step, rows x tokens | form | ms a step | range | MFU |\n|---|---|---|---|---|", flush=True)
    else:
        titles = "CPU-seconds a step | range | model GFLOP | compiled GFLOP | MiB"
        print(f"| step, rows x tokens | form | {titles} |\n|{'---|' * 7}", flush=True)
    for name in options.steps:
        own = STEPS[name].sizes
        sizes = own._replace(layers=options.layers or own.layers, rows=options.rows or own.rows)
        if options.topology:
            show_estimates(name, sizes, options.topology)
        else:
            show(name, sizes, options)
    if any(name.endswith("cudnn") for name in options.steps) and not options.topology:
        print(f"cuDNN's attention differs from the dense one by at most {cudnn_difference():.4f}")


if __name__ == "__main__":
    main()
