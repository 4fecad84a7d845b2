"""A trained model of timm gets DTN without a jump, and learns on from there: `python examples/timm_identity_start.py`.

With the network at hand, `timm.create_model(name, pretrained=True)` takes the place of the first training here.
"""

import argparse

import torch
import torch.nn.functional as F

import dynavit  # before timm: it mends timm's import where torchvision was built for another torch
from dynavit.data.open import open_data


def train(model, images, labels, epochs, lr):
    optimiser = torch.optim.AdamW(dynavit.parameter_groups(model, weight_decay=0.05, lr=lr), lr=lr)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(32):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


@torch.no_grad()
def right(model, images, labels):
    return float((model.eval()(images).argmax(-1) == labels).float().mean())


def main(epochs=8):
    import timm

    torch.manual_seed(0)
    digits = open_data("digits")
    (images, labels), (test_images, test_labels) = (
        (split.images.float().repeat(1, 3, 1, 1) / 255 - 0.3, split.labels)
        for split in (digits.splits["train"], digits.splits["test"])
    )
    size = {"img_size": 8, "patch_size": 2, "embed_dim": 48, "depth": 2, "num_heads": 4}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **size)
    train(model, images, labels, epochs, lr=2e-3)
    print(f"LayerNorm: {right(model, test_images, test_labels):.1%}")

    swapped = dynavit.swap_norms(model, "dtn", start="identity")  # a copy; λ = 1 is LayerNorm exactly
    print(swapped.swap_plan)  # each norm: swapped, kept or refused, and why
    apart = float((swapped.eval()(test_images) - model.eval()(test_images)).detach().abs().max())
    print(f"DTN, before training: {right(swapped, test_images, test_labels):.1%}, logits differ by {apart:.1e}")
    train(swapped.train(), images, labels, epochs, lr=1e-3)
    print(f"DTN, after {epochs} more epochs: {right(swapped, test_images, test_labels):.1%}")
    return apart


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    main(parser.parse_args().epochs)
