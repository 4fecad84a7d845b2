"""Models of timm that are tested with our norms. `create_model` takes every other name of timm too, unlisted.

LeViT has no LayerNorm to replace: each linear is followed by a BatchNorm that disappears into it at inference. Putting a token
norm there is possible, `create_model("levit_128s", "dtn", where={"site": "linear_bn"})`; then there is nothing left to fold.
"""

from .registry import register_timm_names

TIMM_NAMES = {
    "vit_tiny_patch16_224": "ViT-T of timm, class token from the start",
    "vit_small_patch16_224": "ViT-S of timm",
    "vit_base_patch16_224": "ViT-B of timm",
    "vit_small_patch14_reg4_dinov2": "ViT-S of DINOv2: class token and four register tokens, 518 px unless told",
    "vit_little_patch16_reg4_gap_256": "ViT with four register tokens, mean pooling and no class token",
    "deit_tiny_patch16_224": "DeiT-T",
    "deit_small_patch16_224": "DeiT-S",
    "deit_base_patch16_224": "DeiT-B",
    "deit_tiny_distilled_patch16_224": "DeiT-T with a distillation token",
    "swin_tiny_patch4_window7_224": "Swin-T, windowed attention on a pyramid",
    "swin_small_patch4_window7_224": "Swin-S",
    "pvt_v2_b0": "PVTv2-B0, the smallest",
    "pvt_v2_b3": "PVTv2-B3",
    "levit_128s": "LeViT-128S; BatchNorm behind its linears, no LayerNorm",
    "convit_tiny": "ConViT-T, gated positional attention",
    "convit_small": "ConViT-S",
}

register_timm_names(TIMM_NAMES)
