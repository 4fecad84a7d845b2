"""Models in which a token must not depend on later ones: a norm that mixes tokens would leak them.

Only what the modules say of themselves can be seen. A causal mask that is passed when the model is called cannot: then the
caller has to say `causal=True`.
"""

import re

from torch import nn

_DECODER = re.compile(r"GPT|Causal|Llama|Mistral|(?<!en)DecoderLayer$|DecoderBlock$", re.I)


def causal_modules(model: nn.Module) -> dict[str, str]:
    """Paths of modules that say they are causal, each with the evidence."""
    found = {}
    for path, module in model.named_modules():
        name = type(module).__name__
        if isinstance(module, nn.TransformerDecoderLayer) or _DECODER.search(name):
            found[path] = f"{name} is a decoder"
            continue
        for attribute in ("is_causal", "causal", "is_decoder"):
            holder = module if getattr(module, attribute, False) is True else getattr(module, "config", None)
            if getattr(holder, attribute, False) is True:
                found[path] = f"{name} has {attribute}=True"
    return found


def causal_reason(path: str, block: str, causal: dict[str, str]) -> str:
    """The evidence that the norm at `path` is part of something causal; "" if there is none."""
    for place, why in causal.items():
        around = not place or path.startswith(f"{place}.")
        beside = block and (place == block or place.startswith(f"{block}."))
        if around or beside:
            return why
    return ""
