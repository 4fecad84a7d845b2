"""Options of the training loop. Every field is read by the loop; the names are the options of `dynavit train`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ..common.fits import AtLeastOne, Count, Fraction, NotNegative, Positive, Range, Seed, Share

Epochs = Annotated[float, Range(above=0, most=1e6)]
Threads = Annotated[int, Range(least=1, most=1024)]  # far more than that crash the OpenMP library


@dataclass
class OptimConfig:
    """AdamW, SGD or Muon, and a learning rate that rises linearly, then falls.

    Attributes:
        algorithm: adamw; sgd with momentum, which many fine-tune with; muon, which learns more in short trainings.
        weight_decay: not applied to biases, norms and what the model itself exempts. sgd adds it to the gradient.
        weight_decay_end: where half a cosine from weight_decay leads in the course of the training; constant if not given.
        decay_all: apply it to these too.
        betas: of AdamW, which muon uses for all but hidden matrices.
        eps: of AdamW.
        momentum: of SGD and Muon.
        schedule: the fall is half a cosine, with rsqrt_warmup like 1 / sqrt(step), with steps to a tenth after 2/3 and 11/12.
        warmup_epochs: length of the rise; at most half of the training.
        warmup_steps: the same in steps, in place of warmup_epochs if it is not 0.
        min_lr: where the cosine ends, as a fraction of the learning rate.
        clip: largest norm of the gradient; 0 leaves it as it is.
        clip_mode: that norm is of all gradients together (global), or of each parameter's by itself (per_tensor).
        accumulate: micro-batches per step; memory falls. Results stay, except for norms with batch statistics and mixing.
        layer_decay: factor on the learning rate per layer from the last to the first; 1 treats them alike.
        backbone_lr: factor on the learning rate of everything but the classifier, beside layer_decay; for fine-tuning.
    """

    algorithm: Literal["adamw", "sgd", "muon"] = "adamw"
    weight_decay: NotNegative = 0.05
    weight_decay_end: NotNegative | None = None
    decay_all: bool = False
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    momentum: Share = 0.9
    schedule: Literal["cosine", "rsqrt_warmup", "steps"] = "cosine"
    warmup_epochs: NotNegative = 1.0
    warmup_steps: Count = 0
    min_lr: Fraction = 0.01
    clip: NotNegative = 1.0
    clip_mode: Literal["global", "per_tensor"] = "global"
    accumulate: AtLeastOne = 1
    layer_decay: Positive = 1.0
    backbone_lr: NotNegative = 1.0


@dataclass
class EmaConfig:
    """A running average of the weights, evaluated beside them.

    Attributes:
        decay: of the average, 0.9998 for long trainings; 0 keeps none.
        warmup: let the decay grow with the steps, (1 + n) / (10 + n), so that the start is forgotten.
    """

    decay: Share = 0.0
    warmup: bool = True


@dataclass
class EngineConfig:
    """The machine and the bookkeeping; none of it should change results much.

    Attributes:
        precision: float32, bf16 or fp16 (mixed, float32 weights), float64 (for tests of exactness).
        compile: torch.compile the model; falls back with a notice if that fails.
        parallel: with several processes (torchrun): ddp copies the model, fsdp shards it.
        log_every: steps between lines in metrics.jsonl.
        scalars_every: steps between records of what layers report (λ of DTN); 0: once an epoch.
        eval_every: epochs between evaluations on the validation split; the last epoch always ends with one.
        checkpoint_every: steps between checkpoints; 0: at the end of each epoch.
        check_finite: stop at a loss that is not finite, and name the layer it comes from.
        threads: CPU threads for torch; its own choice if not given.
        device: cpu, cuda, mps; the best there is if not given.
        tensorboard: also write TensorBoard files (extra `track`).
    """

    precision: Literal["float32", "bf16", "fp16", "float64"] = "float32"
    compile: bool = False
    parallel: Literal["ddp", "fsdp"] = "ddp"
    log_every: AtLeastOne = 20
    scalars_every: Count = 0
    eval_every: AtLeastOne = 1
    checkpoint_every: Count = 0
    check_finite: bool = True
    threads: Threads | None = None
    device: str | None = None
    tensorboard: bool = False


@dataclass
class TrainPlan:
    """Everything the loop itself needs to know."""

    epochs: Epochs = 20
    lr: Positive = 1e-3
    seed: Seed = 0
    optim: OptimConfig = field(default_factory=OptimConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
