"""A small self-distillation for tests: nine heads, so that DTN's neighbourhood is 3x3, on images of 8 pixels."""

import torch

from dynavit.common.batch import Batch
from dynavit.models import create_model
from dynavit.tasks.dino import Dino
from dynavit.tasks.options import DinoOptions

SIDE, LOCAL, K = 8, 4, 32


def tiny_model(norm="ln", **options):
    small = {
        "img_size": SIDE,
        "patch_size": 2,
        "embed_dim": 18,
        "depth": 3,
        "heads": 9,
        "norm_blocks": 2,
        "class_token": "late",
    }
    return create_model("vit_micro", norm=norm, num_classes=0, in_chans=1, **{**small, **options})


def tiny_task(norm="ln", seed=0, model=None, **options):
    torch.manual_seed(seed)
    small = {"local_crops": 2, "local_size": LOCAL, "prototypes": K, "hidden": 24, "bottleneck": 8, "bank": 100}
    return Dino(tiny_model(norm, **(model or {})), DinoOptions(**{**small, **options}))


def views(samples, seed=0, local=2, dtype=torch.float32):
    """Random images under a little noise; small views are the same, averaged."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(samples, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    small = torch.nn.functional.avg_pool2d(image, SIDE // LOCAL)
    plain = [image, image, *[small] * local]
    return [(view + 0.3 * torch.randn(view.shape, generator=generator, dtype=torch.float64)).to(dtype) for view in plain]


def batch(samples, seed=0, count=None, step_count=None, **how):
    count = samples if count is None else count
    index = torch.arange(samples)
    return Batch(views(samples, seed, **how), torch.zeros(samples, dtype=torch.int64), index, count, step_count or samples)


def step(task, optimiser, batches, number=0, total=10):
    """One step as the trainer makes it."""
    task.forget_statistics()
    task.set_progress(number, total)
    optimiser.zero_grad(set_to_none=True)
    for one in batches:
        outputs = task(one)
        (outputs["loss"] * one.count / one.step_count).backward()
    task.before_update()
    optimiser.step()
    task.commit_statistics()
    return outputs


def optimiser_of(task, lr=1e-2, **options):
    return torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=lr, **options)
