"""The optimiser: which parameters are decayed, at which rate each learns, and the state by parameter name."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from ..common.registry import nearest_match_error
from ..common.torchvision_shim import ensure_torchvision
from .config import OptimConfig
from .contract import Task
from .muon import Muon
from .optional import optional_methods
from .sharded import assign, gathered
from .task_state import module_path, own_parameters, trained_parameters

FUSED = ("cpu", "cuda", "xpu", "mps")  # devices with an AdamW in one kernel


def make_optimiser(task: Task, config: OptimConfig, device: torch.device) -> Optimizer:
    groups = parameter_groups(
        task.model, config.weight_decay, config.layer_decay, config.backbone_lr, decay_all=config.decay_all
    )
    groups += own_groups(task, config.weight_decay, config.decay_all)
    if config.weight_decay_end is not None and not config.weight_decay:
        raise ValueError(
            f"optim.weight_decay_end={config.weight_decay_end} is where the decay leads to, and optim.weight_decay=0 decays "
            "nothing; begin with a small one, such as 1e-6"
        )
    if not groups:
        raise ValueError("there is no parameter to train: all of them are frozen")
    if config.algorithm == "adamw":
        return AdamW(groups, lr=0.0, betas=config.betas, eps=config.eps, fused=device.type in FUSED)
    if config.algorithm == "sgd":
        # Not fused: that kernel wants momentum for all of a group or none of it, but a first gradient may come late.
        return SGD(groups, lr=0.0, momentum=config.momentum)
    if config.algorithm == "muon":
        groups = with_matrices_apart(groups, task.model)
        fused = device.type in FUSED
        return Muon(groups, momentum=config.momentum, betas=config.betas, eps=config.eps, fused=fused)
    raise nearest_match_error("optim.algorithm", config.algorithm, ("adamw", "sgd", "muon"))


def with_matrices_apart(groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    """Muon's groups: weights of hidden layers apart. Embeddings, classifiers, norms, tokens, a task's own stay AdamW's."""
    exempt = names_without_decay(model)
    other = named_classifier(model) | {
        p for layer in model.modules() if isinstance(layer, nn.Embedding) for p in layer.parameters()
    }
    hidden = {p for name, p in model.named_parameters() if p.ndim >= 2 and name not in exempt} - other
    made = []
    for group in groups:
        for matrices in (True, False):
            params = [parameter for parameter in group["params"] if (parameter in hidden) == matrices]
            made += [group | {"params": params, "matrices": matrices}] if params else []
    return made


def set_lr(optimiser: Optimizer, lr: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = lr * group["lr_scale"]


def set_weight_decay(optimiser: Optimizer, weight_decay: float) -> None:
    """For the groups that are decayed at all."""
    for group in optimiser.param_groups:
        if group["weight_decay"]:
            group["weight_decay"] = weight_decay


def parameter_groups(
    model: nn.Module,
    weight_decay: float = 0.05,
    layer_decay: float = 1.0,
    backbone_lr: float = 1.0,
    *,
    lr: float | None = None,
    decay_all: bool = False,
) -> list[dict[str, Any]]:
    """Groups for an optimiser of torch: every trainable parameter in exactly one, each with its `weight_decay` and `lr_scale`.

    Biases, parameters of one axis, all of our norms', and what the model exempts (timm's `no_weight_decay()`) are not decayed.

    Args:
        model: bare, not wrapped for several processes: names decide.
        layer_decay: factor on the learning rate per layer, from the last to the first.
        backbone_lr: factor on the learning rate of everything but the classifier.
        lr: gives each group its own `lr`, scaled. Without it the two factors are only noted as `lr_scale`, which schedulers of
            timm read and torch's do not.
        decay_all: nothing is spared.
    """
    exempt = names_without_decay(model)
    scales = layer_scales(model, layer_decay) if layer_decay != 1.0 else {}
    classifier = classifier_parameters(model, backbone_lr) if backbone_lr != 1.0 else set(model.parameters())
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            spared = not decay_all and (name in exempt or parameter.ndim <= 1)
            decay = 0.0 if spared else weight_decay
            scale = scales.get(name, 1.0) * (1.0 if parameter in classifier else backbone_lr)
            groups.setdefault((scale, decay), []).append(parameter)
    made: list[dict[str, Any]] = [
        {"params": params, "lr_scale": scale, "weight_decay": decay} for (scale, decay), params in groups.items()
    ]
    return made if lr is None else [{**group, "lr": lr * group["lr_scale"]} for group in made]


def own_groups(task: Task, weight_decay: float, decay_all: bool = False) -> list[dict[str, Any]]:
    """Groups of the parameters that a task has beside its model's."""
    exempt = {module_path(name) for name in names_without_decay(task)}
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in own_parameters(task).items():
        spared = not decay_all and (name in exempt or parameter.ndim <= 1)
        groups.setdefault(0.0 if spared else weight_decay, []).append(parameter)
    return [{"params": params, "lr_scale": 1.0, "weight_decay": decay} for decay, params in groups.items()]


def names_without_decay(model: nn.Module) -> set[str]:
    """Parameters that the model (timm's `no_weight_decay()`) and its layers exempt from weight decay."""
    own = optional_methods(model, "no_weight_decay").get("", set)()
    layers = optional_methods(model, "no_weight_decay_parameters")
    return set(own) | {f"{path}.{name}" if path else name for path, names in layers.items() for name in names()}


def layer_scales(model: nn.Module, layer_decay: float) -> dict[str, float]:
    """Parameter name to factor on the learning rate: 1 for the last layer, `layer_decay` for the one before, and so on."""
    matcher = optional_methods(model, "group_matcher").get("")
    if matcher is None:
        raise ValueError(
            f"optim.layer_decay={layer_decay} needs a model that says which layer a parameter belongs to (timm's "
            f"`group_matcher`), and {type(model).__name__} does not; leave layer_decay at 1"
        )
    ensure_torchvision()
    from timm.models import group_parameters  # slow to import, and only needed here

    layers: dict[str, int] = group_parameters(model, matcher(coarse=False), reverse=True)
    last = max(layers.values())
    return {name: layer_decay ** (last - layer) for name, layer in layers.items()}


def classifier_parameters(model: nn.Module, backbone_lr: float) -> set[nn.Parameter]:
    found = named_classifier(model)
    if not found:
        raise ValueError(
            f"optim.backbone_lr={backbone_lr} needs a model with a classifier that it can name (timm's `get_classifier`), and "
            f"{type(model).__name__} has none; leave backbone_lr at 1"
        )
    return found


def named_classifier(model: nn.Module) -> set[nn.Parameter]:
    """The parameters of the model's classifier, or of all of them where it has several; none if it names none."""
    get_classifier = optional_methods(model, "get_classifier").get("")
    heads = get_classifier() if get_classifier is not None else ()
    return {parameter for head in (heads if isinstance(heads, tuple | list) else [heads]) for parameter in head.parameters()}


def optimiser_state(optimiser: Optimizer, task: Task) -> dict[str, dict[str, Tensor]]:
    """{parameter name: {"step", "exp_avg", "exp_avg_sq"}}, of SGD {"momentum_buffer"}, with whole tensors on the CPU."""
    return {
        name: {key: gathered(value).clone() for key, value in optimiser.state[parameter].items()}
        for name, parameter in trained_parameters(task).items()
        if parameter in optimiser.state
    }


def load_optimiser_state(optimiser: Optimizer, task: Task, state: dict[str, dict[str, Tensor]]) -> None:
    trained = trained_parameters(task)
    if state.keys() - trained.keys():
        raise ValueError(
            f"the optimiser's state knows parameters that are not trained: {sorted(state.keys() - trained.keys())}"
        )
    for name, values in state.items():
        parameter = trained[name]
        for key, whole in values.items():
            # The step count is a plain number; moments look like their parameter and are spread as it is.
            own = whole.to(parameter.device) if key == "step" else torch.zeros_like(parameter.detach())
            if key != "step":
                assign(own, whole)
            optimiser.state[parameter][key] = own
