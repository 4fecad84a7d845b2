"""Small models in other people's dialects."""

from collections import OrderedDict
from types import SimpleNamespace

import torch
from torch import nn

from dynavit.common.torchvision_shim import ensure_torchvision


def timm_model(name, **options):
    ensure_torchvision()
    import timm

    torch.manual_seed(0)
    return timm.create_model(name, **options).eval()


def small_vit(**options):
    """24 norms become 4."""
    return timm_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=7, **options)


class PreNormAttention(nn.Module):
    """As in vit-pytorch: the norm in front of attention stands inside it."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)

    def forward(self, x):
        q, k, v = self.to_qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x):
        return self.net(x)


class LinearPatchViT(nn.Module):
    """Patches cut by reshaping and embedded by a linear layer: no convolution ever sees the image."""

    def __init__(self, dim=24, heads=4, patch=8, shuffled=False):
        super().__init__()
        self.patch, self.image_size, self.shuffled = patch, 32, shuffled
        self.to_patch_embedding = nn.Linear(3 * patch * patch, dim)
        self.layers = nn.ModuleList(nn.ModuleList([PreNormAttention(dim, heads), FeedForward(dim)]) for _ in range(2))
        self.norm = nn.LayerNorm(dim)

    def forward(self, image):
        b, c, h, w = image.shape
        p = self.patch
        x = image.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, (h // p) * (w // p), -1)
        if self.shuffled:
            x = x[:, torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(1))]
        x = self.to_patch_embedding(x)
        for attention, feed_forward in self.layers:
            x = x + attention(x)
            x = x + feed_forward(x)
        return self.norm(x).mean(1)


class HuggingFaceAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.num_attention_heads = heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2) for each in self.children())
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class HuggingFaceLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = HuggingFaceAttention(dim, heads)
        self.intermediate, self.output = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.layernorm_before, self.layernorm_after = nn.LayerNorm(dim, eps=1e-12), nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x):
        x = x + self.attention(self.layernorm_before(x))
        return x + self.output(nn.functional.gelu(self.intermediate(self.layernorm_after(x))))


class HuggingFaceViT(nn.Module):
    """Names, nesting and the output object of transformers' ViTForImageClassification."""

    def __init__(self, dim=48, heads=3):
        super().__init__()
        self.config = SimpleNamespace(image_size=64)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.projection = nn.Conv2d(3, dim, 16, 16)
        self.layer = nn.ModuleList(HuggingFaceLayer(dim, heads) for _ in range(2))
        self.layernorm, self.classifier = nn.LayerNorm(dim, eps=1e-12), nn.Linear(dim, 2)

    def forward(self, pixel_values):
        x = self.projection(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        for layer in self.layer:
            x = layer(x)
        return OrderedDict(logits=self.classifier(self.layernorm(x)[:, 0]))


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n_head = heads
        self.c_attn = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class LanguageBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(dim), CausalSelfAttention(dim, heads)
        self.ln_2, self.mlp = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Language(nn.Module):
    """nanoGPT's shape."""

    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.wte = nn.Embedding(50, dim)
        self.h = nn.ModuleList(LanguageBlock(dim, heads) for _ in range(2))
        self.ln_f = nn.LayerNorm(dim)

    def forward(self, ids):
        x = self.wte(ids)
        for block in self.h:
            x = block(x)
        return self.ln_f(x)
