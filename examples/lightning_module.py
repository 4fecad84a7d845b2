"""DTN in a Lightning module: `python examples/lightning_module.py` (pip install lightning)."""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynavit  # before lightning: it mends the import where torchvision was built for another torch
from dynavit.data.open import open_data

from lightning import LightningModule, Trainer  # isort: skip


class Classifier(LightningModule):
    def __init__(self, norm="dtn", lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = dynavit.create_model("vit_micro", norm=norm, num_classes=10, img_size=8, in_chans=1, depth=2)

    def training_step(self, batch, _):
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, *_):
        """Norms with running statistics take them over once per step; norms that anneal are told how far the training is."""
        total = self.trainer.estimated_stepping_batches
        for module in self.model.modules():
            if hasattr(module, "commit_statistics"):
                module.commit_statistics()
            if hasattr(module, "set_progress"):
                module.set_progress(self.global_step, total)

    def test_step(self, batch, index):
        images, labels = batch
        self.log("right", (self.model(images).argmax(-1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        groups = dynavit.parameter_groups(self.model, weight_decay=0.05, lr=self.hparams.lr)
        return torch.optim.AdamW(groups, lr=self.hparams.lr)


def loader(split, shuffle):
    images, labels = split.images.float() / 255 - 0.3, split.labels
    return DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=shuffle)


def main(epochs=8, norm="dtn"):
    torch.manual_seed(0)
    digits = open_data("digits")
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    module = Classifier(norm)
    trainer.fit(module, loader(digits.splits["train"], True))
    (result,) = trainer.test(module, loader(digits.splits["test"], False))
    return result["right"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--norm", default="dtn")
    given = parser.parse_args()
    main(given.epochs, given.norm)
