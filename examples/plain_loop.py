"""Dynamic Token Normalization in a training loop of your own, plain PyTorch: `python examples/plain_loop.py`."""

import argparse

import torch
import torch.nn.functional as F

import dynavit
from dynavit.data.open import open_data


def tensors(split):
    """(n, 1, 8, 8) images around 0 and (n,) labels."""
    return split.images.float() / 255 - 0.3, split.labels


def main(epochs=12):
    torch.manual_seed(0)
    digits = open_data("digits")  # 1,797 images that come with the package
    images, labels = tensors(digits.splits["train"])
    model = dynavit.create_model("vit_micro", norm="dtn", num_classes=10, img_size=8, in_chans=1, depth=2)
    # Norms say which of their parameters must not decay; this asks them.
    groups = dynavit.parameter_groups(model, weight_decay=0.05, lr=3e-3)
    optimiser = torch.optim.AdamW(groups, lr=3e-3)
    for epoch in range(epochs):
        for batch in torch.randperm(len(labels)).split(32):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    test_images, test_labels = tensors(digits.splits["test"])
    with torch.no_grad():
        right = (model.eval()(test_images).argmax(-1) == test_labels).float().mean()
    print(f"right on test: {right:.1%}")
    for name, module in model.named_modules():
        if isinstance(module, dynavit.DynamicTokenNorm):  # λ: how much of LayerNorm each head keeps
            print(name, {scalar: round(float(value), 3) for scalar, value in module.scalars().items()})
    return float(right)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    main(parser.parse_args().epochs)
