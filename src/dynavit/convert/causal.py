"""Models in which a token must not learn about later ones: norms that mix tokens would tell it.

Only what the modules say of themselves can be seen. A causal mask that is passed when the model is called cannot: then
`causal=True` has to be said.
"""

import re

from torch import nn

# Norms that treat each token by itself. Any other norm counts as mixing, also one registered later.
TOKEN_WISE = frozenset({"ln", "rms", "scale", "dyt", "derf"})

_DECODER = re.compile(r"GPT|Causal|Llama|Mistral|(?<!en)DecoderLayer$|DecoderBlock$", re.I)


def mixes_tokens(norm: str) -> bool:
    return norm not in TOKEN_WISE


def causal_modules(model: nn.Module) -> dict[str, str]:
    """Paths of modules that say they are causal, and how."""
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
    """Why the norm at `path` is part of something causal; "" if it is not."""
    for place, why in causal.items():
        around = not place or path.startswith(f"{place}.")
        beside = block and (place == block or place.startswith(f"{block}."))
        if around or beside:
            return why
    return ""
