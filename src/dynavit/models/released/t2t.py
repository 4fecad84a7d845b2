"""T2T-ViT (arXiv 2101.11986): `t2t_vit_*`, `t2t_vit_t_*`; and as UN (arXiv 2208.01313) has them, with every norm replaced, the
tokenizer's and the last one too.
"""

import re
from typing import Any

from torch import nn

from ...norms.contract import Norm
from ..layers import make_norm
from ..t2t import T2T_SIZES, T2TVisionTransformer
from .family import Family, State, Wanted, blocks_below, shared_options, side
from .norms import NORMS


def _build(state: State, wanted: Wanted) -> nn.Module:
    options = shared_options(state, wanted, "head.weight") | {"norm": "ln", "norm_options": {}}
    grid = side(state, wanted, "pos_embed", 14, prefix=1)
    model = T2TVisionTransformer(img_size=16 * grid, qk_scale=wanted.qk_scale, **options)
    if wanted.norm == "un":
        _normalise_all_by_un(model, state, NORMS["un"][1])
    return model


def _normalise_all_by_un(model: nn.Module, state: State, options: dict[str, Any]) -> None:
    """In place: every norm, each with the windows that its buffers show."""
    for path, norm in [(path, module) for path, module in model.named_modules() if isinstance(module, Norm)]:
        buffers = (state.get(f"{path}.{name}") for name in ("buffer_x2", "buffer_gz"))
        window = tuple(4 if buffer is None else len(buffer) for buffer in buffers)
        model.set_submodule(path, make_norm("un", norm.dim, norm.heads, {**options, "window": window}))


T2T = Family(
    mark="tokens_to_token.",
    archs=T2T_SIZES,
    norms=("layer", "un"),
    sites=re.compile(r"(blocks\.(\d+)\.norm[12])\.(.+)"),
    depth=lambda state: blocks_below(state, "blocks"),
    build=_build,
)
