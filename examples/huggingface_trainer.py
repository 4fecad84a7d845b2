"""A Hugging Face ViT with DTN under its own Trainer: `python examples/huggingface_trainer.py` (pip install transformers)."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset

import dynavit
from dynavit.data.open import open_data


class Digits(Dataset):
    """Samples as `transformers` wants them."""

    def __init__(self, split):
        self.pixels = split.images.float() / 255 - 0.3
        self.labels = split.labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixel_values": self.pixels[index], "labels": self.labels[index]}


def main(epochs=8):
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    size = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
    width = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    model = ViTForImageClassification(ViTConfig(**size, **width))  # or .from_pretrained("google/vit-base-patch16-224")
    model = dynavit.swap_norms(model, "dtn", input_size=8)
    print(model.swap_plan)

    digits = open_data("digits")
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            out, num_train_epochs=epochs, per_device_train_batch_size=32, learning_rate=3e-3, report_to=[], save_strategy="no"
        )
        # Trainer decays what is no bias and no LayerNorm; DTN's parameters are kept out by an optimiser of our groups.
        groups = dynavit.parameter_groups(model, weight_decay=0.05, lr=arguments.learning_rate)
        optimiser = torch.optim.AdamW(groups, lr=arguments.learning_rate)
        trainer = Trainer(model, arguments, train_dataset=Digits(digits.splits["train"]), optimizers=(optimiser, None))
        trainer.train()
        predicted = trainer.predict(Digits(digits.splits["test"]))
    right = float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())
    print(f"right on test: {right:.1%}")
    return right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=float, default=8)
    main(parser.parse_args().epochs)
