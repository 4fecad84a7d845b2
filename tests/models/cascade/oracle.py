"""The cascade written out plainly from the specification: nearest neighbours and adaptive pooling, explicit softmax, no fusing.

It takes a state dict with our names and shares no code with `dynavit`. (b, c, height, width) -> the logits of every exit.
"""

import math

import torch
import torch.nn.functional as F

from norms import dtn_oracle


def cascade(state, images, *, splits, depth, heads, norm="ln", eps=1e-5, feature_reuse=True, relation_reuse=True, pool="token"):
    found, before = [], None
    depths = [depth] * len(splits) if isinstance(depth, int) else depth
    for at, own in enumerate(splits):
        weights = {name.removeprefix(f"exits.{at}."): value for name, value in state.items() if name.startswith(f"exits.{at}.")}
        x, grid = tokens(weights, images, own)
        reuse = before if before is not None else (None, None, None)
        logits, x, relations = trunk(weights, x, grid, reuse, depths[at], heads, norm, eps, feature_reuse, relation_reuse, pool)
        found.append(logits)
        before = (x, relations, grid)
    return found


def trunk(w, x, grid, before, depth, heads, norm, eps, feature_reuse, relation_reuse, pool):
    features, relations, old = before
    b, n, c = x.shape
    x = torch.cat([w["cls_token"].expand(b, 1, c), x], 1) + w["pos_embed"]
    reused_bias = None
    if relations is not None and relation_reuse:
        mixed = F.conv2d(relations, w["relation_reuse.expand.weight"], w["relation_reuse.expand.bias"])
        mixed = F.conv2d(gelu(mixed), w["relation_reuse.reduce.weight"], w["relation_reuse.reduce.bias"])
        mixed = enlarge_last(mixed, old, grid)
        reused_bias = enlarge_last(mixed.transpose(2, 3), old, grid).transpose(2, 3)  # (b, l * h, 1 + n, 1 + n)
    kept = []
    for i in range(depth):
        block = {name.removeprefix(f"blocks.{i}."): value for name, value in w.items() if name.startswith(f"blocks.{i}.")}
        qkv = linear(block, "attn.qkv", any_norm(block, "norm1", x, grid, norm, eps)).reshape(b, 1 + n, 3, heads, c // heads)
        q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
        logits = q @ k.transpose(2, 3) / math.sqrt(c // heads)
        if reused_bias is not None:
            logits = logits + reused_bias[:, i * heads : (i + 1) * heads]
        kept.append(logits)
        weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
        x = x + linear(block, "attn.proj", (weights @ v).transpose(1, 2).reshape(b, 1 + n, c))
        h = x
        if features is not None and feature_reuse:
            few = layer_norm(block, "feature_reuse.norm", features, eps)
            few = linear(block, "feature_reuse.mlp.fc2", gelu(linear(block, "feature_reuse.mlp.fc1", few)))
            few = enlarge_last(few.transpose(1, 2)[:, None], old, grid)[:, 0].transpose(1, 2).clone()
            few[:, 0] = 0
            if norm == "ln":
                h = torch.cat([x, few], 2)
            else:  # head by head: own channels, then a share of the reused ones
                h = torch.cat([part for pair in zip(x.chunk(heads, 2), few.chunk(heads, 2), strict=True) for part in pair], 2)
        h = any_norm(block, "norm2", h, grid, norm, eps)
        x = x + linear(block, "mlp.fc2", gelu(linear(block, "mlp.fc1", h)))
    answers = layer_norm(w, "norm", x, eps)
    answer = answers[:, 0] if pool == "token" else answers[:, 1:].sum(1) / n
    return linear(w, "head", answer), x, torch.cat(kept, 1)


def enlarge_last(x, old, new):
    """(b, c, anything, 1 + old tokens) -> (b, c, anything, 1 + new tokens)."""
    image = x[..., 1:].reshape(-1, 1, *old)
    for axis in (2, 3):
        image = image.repeat_interleave(math.ceil(new[axis - 2] / old[axis - 2]), axis)
    image = F.adaptive_avg_pool2d(image, new)
    return torch.cat([x[..., :1], image.reshape(*x.shape[:-1], math.prod(new))], -1)


def tokens(w, images, splits):
    """Convolutions with a GELU between them, or soft splits with performers between them."""
    x = images
    if "tokenizer.proj.weight" in w:
        names = [*(f"tokenizer.stem.{at}" for at in range(len(splits) - 1)), "tokenizer.proj"]
        for name, (_, stride, padding) in zip(names, splits, strict=True):
            x = gelu(x) if name != names[0] else x
            x = F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], stride=stride, padding=padding)
            if f"tokenizer.norms.{name[-1]}.weight" in w:
                x = batch_norm(w, f"tokenizer.norms.{name[-1]}", x)
        return x.flatten(2).transpose(1, 2), tuple(x.shape[2:])
    for at, (kernel, stride, padding) in enumerate(splits, 1):
        grid = tuple((side + 2 * padding - kernel) // stride + 1 for side in x.shape[2:])
        x = F.unfold(x, kernel, stride=stride, padding=padding).transpose(1, 2)
        if at == len(splits):
            return linear(w, "tokenizer.project", x), grid
        name = f"tokenizer.attention{at}"
        k, q, v = linear(w, f"{name}.kqv", layer_norm(w, f"{name}.norm1", x, 1e-5)).chunk(3, -1)
        r = w[f"{name}.w"]
        q, k = (torch.exp(z @ r.T - z.square().sum(-1, keepdim=True) / 2) / math.sqrt(len(r)) for z in (q, k))
        y = q @ (k.transpose(1, 2) @ v) / ((q * k.sum(1, keepdim=True)).sum(-1, keepdim=True) + 1e-8)
        x = v + linear(w, f"{name}.proj", y)
        x = x + linear(w, f"{name}.mlp.2", gelu(linear(w, f"{name}.mlp.0", layer_norm(w, f"{name}.norm2", x, 1e-5))))
        x = x.transpose(1, 2).unflatten(2, grid)
    return None


def any_norm(w, name, x, grid, norm, eps):
    if norm == "ln":
        return layer_norm(w, name, x, eps)
    lambdas = (w[f"{name}.{kind}_logit"].sigmoid() for kind in ("mean", "var"))
    P = dtn_oracle.positional(w[f"{name}.position"], grid)
    return dtn_oracle.dtn(x, P, *lambdas, w[f"{name}.weight"], w[f"{name}.bias"], prefix=1, eps=eps)


def layer_norm(w, name, x, eps):
    mean = x.mean(-1, keepdim=True)
    var = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / (var + eps).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def batch_norm(w, name, x):
    """With running statistics. (b, c, rows, cols)"""
    mean, var, weight, bias = (w[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias"))
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def linear(w, name, x):
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2
