"""The parameters of norms that an optimiser should not decay, by the names a model has for them."""

from torch import nn

from .contract import Norm


def names_without_decay(model: nn.Module) -> set[str]:
    """Full names of the parameters that the model's norms want kept from weight decay."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, Norm)
        for name in module.no_weight_decay_parameters()
    }
