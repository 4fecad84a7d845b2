"""The table of models: the norms of each are swapped, and the swapped model makes a training step.

One model stands for its family, whose other members differ in width and depth; it is shallow where the model lets itself be.
Three norms stand for three kinds: `rms` looks at a token alone, `bn` folds away and so takes every place, `dtn` needs grid and
heads. `dtn` starts as the identity and has to give the outputs of the model that it was swapped into. Sequence models are told
that their tokens are a sequence, `norm_options={"ndim": 1}`.
"""

import fnmatch
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tried_cell import Cell

import dynavit

NORMS = ("rms", "bn", "dtn")


class Model(NamedTuple):
    """`stands_for`: patterns of registered names. `make` gives the model, `example` its input."""

    stands_for: tuple[str, ...]
    make: Callable[[], nn.Module]
    example: Callable[[], Tensor]


def images(side: int, channels: int = 3) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(0))


def words() -> Tensor:
    return torch.randint(1, 10, (2, 64), generator=torch.Generator().manual_seed(0))


def ours(name: str, stands_for: str, example: Callable[[], Tensor] = images(224), **options: Any) -> Model:  # noqa: B008
    return Model(tuple(stands_for.split()), lambda: dynavit.create_model(name, **options), example)


def hugging_face() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 96, "num_hidden_layers": 2, "image_size": 64}
    return ViTForImageClassification(ViTConfig(**size))


def torchvision_swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 24, [2, 2], [3, 6], [7, 7], num_classes=5)


def torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 16, 2, 3, 48, 96, num_classes=5)


def torch_encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(48, 3, 96, batch_first=True, dropout=0.0, norm_first=True), 2)


MODELS = {
    "vit_tiny": ours("vit_tiny", "vit_tiny* vit_small* vit_base* vit_micro vit_mini vit_photo", depth=2),
    "pvt_nano": ours("pvt_nano", "pvt_nano pvt_tiny pvt_small pvt_medium pvt_large", images(64), img_size=64),
    "t2t_vit_7": ours("t2t_vit_7", "t2t_vit_?", depth=2),
    "t2t_vit_12": ours("t2t_vit_12", "t2t_vit_1? t2t_vit_2?", depth=2),
    "t2t_vit_t_14": ours("t2t_vit_t_14", "t2t_vit_t_*", images(64), depth=2, img_size=64),
    "dvt_vit_micro": ours("dvt_vit_micro", "dvt_*", images(32), img_size=32),
    "sequence_micro": ours("sequence_micro", "sequence_micro sequence_transformer", words),
    "sequence_bigbird": ours("sequence_bigbird", "sequence_bigbird", words, depth=2),
    "sequence_reformer": ours("sequence_reformer", "sequence_reformer", words, depth=2),
    "retinanet": ours("test_retinanet", "retinanet maskrcnn", images(64)),
    "vit_tiny_patch16_224": ours("vit_tiny_patch16_224", "vit_*_patch16_224 deit_*_patch16_224", depth=2),
    "vit_small_patch14_reg4_dinov2": ours(
        "vit_small_patch14_reg4_dinov2", "vit_small_patch14_reg4_dinov2", images(56), depth=2, img_size=56
    ),
    "vit_little_patch16_reg4_gap_256": ours(
        "vit_little_patch16_reg4_gap_256", "vit_little_patch16_reg4_gap_256", images(64), depth=2, img_size=64
    ),
    "deit_tiny_distilled_patch16_224": ours("deit_tiny_distilled_patch16_224", "deit_tiny_distilled_patch16_224", depth=2),
    "swin_tiny_patch4_window7_224": ours("swin_tiny_patch4_window7_224", "swin_*", depths=(2, 2, 2, 2)),
    "pvt_v2_b0": ours("pvt_v2_b0", "pvt_v2_*", images(64)),
    "levit_128s": ours("levit_128s", "levit_128s"),
    "convit_tiny": ours("convit_tiny", "convit_*", depth=3, local_up_to_layer=2),
    "swinv2_tiny_window8_256 (timm)": ours("swinv2_tiny_window8_256", "", images(256), depths=(2, 2, 2, 2)),
    "cait_xxs24_224 (timm)": ours("cait_xxs24_224", "", depth=2),
    "xcit_nano_12_p16_224 (timm)": ours("xcit_nano_12_p16_224", "", depth=2),
    "twins_pcpvt_small (timm)": ours("twins_pcpvt_small", "", depths=(1, 1, 1, 1)),
    "maxvit_rmlp_pico_rw_256 (timm)": ours("maxvit_rmlp_pico_rw_256", "", images(256)),
    "mobilevit_xxs (timm)": ours("mobilevit_xxs", "", images(256)),
    "hiera_tiny_224 (timm)": ours("hiera_tiny_224", ""),
    "eva02_tiny_patch14_224 (timm)": ours("eva02_tiny_patch14_224", "", depth=2),
    "convnext_atto (timm)": ours("convnext_atto", "", images(64)),
    "ViTForImageClassification (transformers)": Model((), hugging_face, images(64)),
    "VisionTransformer (torchvision)": Model((), torchvision_vit, images(64)),
    "SwinTransformer (torchvision)": Model((), torchvision_swin, images(56)),
    "nn.TransformerEncoder (torch)": Model((), torch_encoder, lambda: torch.randn(2, 16, 48)),
}


def names_without_a_row(names: list[str]) -> list[str]:
    """Registered models that no row stands for; those called test_… are small copies."""
    patterns = [pattern for model in MODELS.values() for pattern in model.stands_for]
    return [
        name
        for name in names
        if not name.startswith("test_") and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]


def swap(label: str, norm: str) -> Cell:
    """How many norms are swapped, and why others are not; raises if the swapped model is not right."""
    torch.manual_seed(0)
    model, example = MODELS[label].make().eval(), MODELS[label].example()
    options: dict[str, Any] = {"input_size": tuple(example.shape[-2:])} if example.dim() == 4 else {}
    if norm == "dtn" and not example.is_floating_point():
        options["norm_options"] = {"ndim": 1}
    plan = dynavit.plan_swap(model, norm, **options)
    if plan.swapped():
        new = dynavit.swap_norms(model, norm, start="identity" if norm == "dtn" else None, **options)
        if norm == "dtn":
            check_same(new, model, example)
        check_step(new, example)
    others = dict.fromkeys(f"{row.action[0]}: {short(row.reason)}" for row in plan.rows if row.action != "swap")
    return Cell(f"{len(plan.swapped())} of {len(plan.rows)}", "; ".join(others))


def check_same(new: nn.Module, old: nn.Module, example: Tensor) -> None:
    for found, expected in zip(tensors(new(example)), tensors(old(example)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.detach().abs().max()))


def check_step(model: nn.Module, example: Tensor) -> None:
    """Forward and backward in training mode reach the norms, and nothing is infinite."""
    loss = sum(value.float().pow(2).mean() for value in tensors(model.train()(example)))
    assert isinstance(loss, Tensor)
    loss.backward()
    gradients = {key: value.grad for key, value in model.named_parameters() if value.grad is not None}
    bad = [key for key, gradient in gradients.items() if not gradient.isfinite().all()]
    if bad:
        raise ValueError(f"the gradient of {bad[0]} is not finite")
    norms = {f"{path}.weight" for path, module in model.named_modules() if isinstance(module, dynavit.Norm)}
    if not norms & set(gradients):
        raise ValueError("no gradient reaches the new norms")


def short(reason: str) -> str:
    """Without what holds for that one norm: numbers of blocks, shapes, and details behind a colon or a semicolon.

    >>> short("stands in blocks.3, in front of no MLP: pass where=")
    'stands in blocks.*, in front of no MLP'
    >>> short("sees (8, 64, 80) for 2 images: tokens are cut into windows; heads=1")
    'tokens are cut into windows'
    """
    head, _, tail = reason.partition(";")[0].partition(":")
    text = tail.strip() if head.startswith("sees (") else head
    return re.sub(r"\.\d+", ".*", re.sub(r" \([\d, ]+\)| \d+x\d+", "", text))


def tensors(output: Any) -> list[Tensor]:
    """The floating tensors of any output: a tuple of an exit cascade, a dict, an object of Hugging Face."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        output = output.values()
    elif not isinstance(output, (tuple, list)):
        output = vars(output).values() if hasattr(output, "__dict__") else ()
    return list(itertools.chain.from_iterable(tensors(part) for part in output))
