"""Judge a model's frozen features by the classes of images: `dynavit eval --protocol`.

    knn             nearest neighbours among the training images
    linear_cached   logistic regression on features of images as they are, computed once
    linear          linear classifiers trained by SGD on features of augmented images, DINO's protocol

Beside every number stand those of the images' own pixels and of the same network with random weights: features that do not beat
both have learned nothing. Only the training images train or choose anything; the labels of the split are read last, once.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from ..common.data import LoaderOptions
from ..common.files import with_nulls, write_json
from ..common.registry import nearest_match_error
from ..data.config import AugmentConfig
from ..data.dataset import DataSet
from ..data.multicrop import View, multicrop_loader
from ..data.splits import cut_validation
from ..engine.progress import Progress
from ..models.stored_call import build_stored
from ..norms.recalibrate import recalibrate
from ..tasks.cached_probe import CUT_SEED, HELD_BACK, probe
from ..tasks.frozen import DEFAULT, FeatureSet, depth_of, token_pieces
from ..tasks.linear_probe import Heads, best_head
from ..tasks.nearest import NEIGHBOURS, USUAL, accuracies, neighbour_scores
from ..tasks.neighbour_evaluator import small_pixels
from .directory import PROTOCOLS, ProtocolName
from .foreign import asked_of
from .keep import keeping
from .opened import Opened
from .subject import Subject, WhichOptions

MODEL, RANDOM, PIXELS = "model", "random", "pixels"
RECALIBRATED_ON = 10  # batches, for a random network whose norms have running statistics
PROBE_BATCH = 1024  # of `linear`
CROP = (0.08, 1.0)  # part of the area that a crop of `linear` shows


@dataclass(frozen=True)
class Pieces:
    """Features of a split by one extractor, see `token_pieces`, and labels (n,)."""

    tokens: Tensor
    mean: Tensor
    labels: Tensor

    def select(self, chosen: FeatureSet) -> Tensor:
        return chosen.select(self.tokens, self.mean)


Extractor = Callable[[Tensor], tuple[Tensor, Tensor]]


def probe_run(
    run: str | PathLike[str] | Subject,
    protocols: Sequence[str] = ("knn",),
    *,
    features: str | None = None,
    split: str | None = None,
    neighbours: Sequence[int] | None = None,
    epochs: int = 100,
    batch_size: int = 256,
    seed: int = 0,
    progress: Progress | None = None,
    model: str | None = None,
    trust_pt2: bool = False,
    **which: Unpack[WhichOptions],
) -> dict[str, dict[str, Any]]:
    """{protocol: result} of a run's frozen features; each is written to eval/probe/PROTOCOL.json, the features beside them.

    A run of the task dino is judged by its teacher's backbone; `weights="student"` takes the other. Any other run, and
    pretrained weights as in `evaluate_run`, can be judged too.

    Args:
        features: of the linear protocols, see `tasks.frozen`; cls_or_mean:4, or of as many blocks as there are, if not given,
            and `linear` also tries 1 block and the mean of patches. knn always takes the class token, or the mean of patches.
        split: whose images are judged; test where there is one, otherwise val, if not given.
        neighbours: k of knn; 10, 20, 100, 200 as far as there are so many training images, if not given.
        epochs: of `linear`.
        seed: of the random network, and of augmentation and heads of `linear`.
        which: the fields of `Subject`.
    """
    progress, subject = progress or Progress(), asked_of(run, which, model=model, trust_pt2=trust_pt2)
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise nearest_match_error("protocol", protocol, PROTOCOLS)
    opened = replace(subject, any_classes=True).open()
    images = opened.images  # says so where there are none
    if opened.processes.world > 1:
        raise ValueError("probes are computed by one process; start this without torchrun")
    if "train" not in images.splits:
        raise ValueError(f"{images.name} has no training images, which probes learn from")
    chosen = _chosen(opened.model, features)
    judge = Judge(opened, split or opened.final_split, chosen, batch_size, seed, progress)
    results: dict[str, dict[str, Any]] = {}
    for protocol in protocols:
        if protocol == "knn":
            found = judge.knn(neighbours)
        elif protocol == "linear_cached":
            found = judge.linear_cached()
        else:
            found = judge.linear(epochs, every=features is None)
        results[protocol] = {"protocol": protocol, **judge.facts(), **found, "verdict": verdict(found)}
    if not subject.keeps_results:
        return results
    with keeping(subject.directory) as keeper:
        for protocol, result in results.items():
            file = subject.directory.probe_file(
                protocol, opened.source["weights"], opened.data.name if not opened.is_own_data else ""
            )
            result["file"] = str(file)
            keeper.keep(lambda file=file, result=result: write_json(file, with_nulls(result)))  # type: ignore[misc]
        keeper.keep(judge.write_features)
    if keeper.problem is not None:
        return {name: {**result, "not_stored": keeper.problem} for name, result in results.items()}
    return results


def _chosen(model: nn.Module, features: str | None) -> FeatureSet:
    depth = depth_of(model)
    if features is None:
        default = FeatureSet.of(DEFAULT)
        return replace(default, blocks=min(default.blocks, max(depth, 1)))
    chosen = FeatureSet.of(features)
    if depth:
        chosen.check(model)
    elif chosen != FeatureSet(1, False, False):
        raise ValueError(f"features {features}: {type(model).__name__} is no plain stack of blocks; take cls_or_mean:1")
    return chosen


def verdict(result: dict[str, Any]) -> str:
    """Whether the model is better than both baselines."""
    own, others = result[MODEL]["top1"], {name: result[name]["top1"] for name in (PIXELS, RANDOM)}
    behind = [f"{name} ({value:.1%})" for name, value in others.items() if own <= value]
    if behind:
        return f"learned nothing that shows here: {own:.1%} is not above {' and '.join(behind)}"
    ahead = {name: f"{100 * (own - value):.1f}" for name, value in others.items()}
    return f"above pixels by {ahead[PIXELS]} points and above a random network by {ahead[RANDOM]}"


class Judge:
    """The protocols on one opened run. Features are computed when they are first asked for."""

    def __init__(
        self, opened: Opened, split: str, features: FeatureSet, batch_size: int, seed: int, progress: Progress
    ) -> None:
        self.opened, self.split, self.features = opened, split, features
        self.batch_size, self.seed, self.progress = batch_size, seed, progress
        self.data: DataSet = opened.images
        self.classes = len(self.data.classes)
        self.extractors: dict[str, Extractor] = {
            MODEL: self._tokens(opened.model),
            RANDOM: self._tokens(self._random()),
            PIXELS: lambda images: (small_pixels(images)[:, None], small_pixels(images)),
        }
        self.stored: dict[str, dict[str, Pieces]] = {}

    def facts(self) -> dict[str, Any]:
        source = self.opened.source
        return {
            "data": self.data.name,
            "split": self.split,
            "images": len(self.data.splits[self.split]),
            "train_images": len(self.data.splits["train"]),
            **{name: source[name] for name in ("checkpoint", "weights", "step", "sha256")},
            "seed": self.seed,
        }

    # ---- Protocols

    def knn(self, neighbours: Sequence[int] | None) -> dict[str, Any]:
        """Top-1 and top-5 for each k; the headline is k = 20."""
        known = len(self.data.splits["train"])
        ks = [k for k in NEIGHBOURS if k <= known] if neighbours is None else list(neighbours)
        if neighbours is None and (missing := sorted(set(NEIGHBOURS) - set(ks))):
            self.progress.note(f"k-NN without k = {', '.join(map(str, missing))}: there are {known} training images")
        if not ks:
            raise ValueError(f"k-NN with k = {NEIGHBOURS[0]} needs as many training images, and there are {known}")
        headline = USUAL if USUAL in ks else ks[0]
        found: dict[str, Any] = {"features": "cls_or_mean:1", "neighbours": headline}
        last = FeatureSet(1, False, False)
        for name in self.extractors:
            bank, asked = self.pieces("train", name), self.pieces(self.split, name)
            scores = neighbour_scores(bank.select(last), bank.labels, asked.select(last), self.classes, ks)
            by_k = {str(k): accuracies(each, asked.labels) for k, each in scores.items()}
            found[name] = {**by_k[str(headline)], "by_k": by_k}
        return found

    def linear_cached(self) -> dict[str, Any]:
        found: dict[str, Any] = {"features": str(self.features), "held_back": HELD_BACK}
        for name in self.extractors:
            chosen = self.features if name != PIXELS else FeatureSet(1, False, False)
            bank, asked = self.pieces("train", name), self.pieces(self.split, name)
            head, about = probe(bank.select(chosen), bank.labels, self.classes)
            found[name] = {**accuracies(head(asked.select(chosen)), asked.labels), **about}
        return found

    def linear(self, epochs: int, *, every: bool) -> dict[str, Any]:
        """All heads of all extractors in one pass over augmented images; with `every`, of several feature sets."""
        sets = {str(self.features): self.features}
        if every:
            more = (replace(self.features, blocks=n, mean=mean) for n in (1, self.features.blocks) for mean in (False, True))
            sets |= {str(each): each for each in more}
        only = {"pixels": FeatureSet(1, False, False)}
        of = {name: only if name == PIXELS else sets for name in self.extractors}
        batch_size = min(PROBE_BATCH, len(self.data.splits["train"]))
        labels = self.data.splits["train"].labels
        train, held = cut_validation(labels, HELD_BACK, CUT_SEED)
        kept = {name: self.pieces("train", name) for name in self.extractors}
        heads = {
            name: {
                key: Heads(kept[name].select(each).shape[1], self.classes, batch_size, seed=self.seed)
                for key, each in of[name].items()
            }
            for name in self.extractors
        }
        held_out = {name: {key: kept[name].select(each)[held] for key, each in of[name].items()} for name in self.extractors}
        loader = self._augmented(train, batch_size)
        total, step = epochs * loader.steps, 0
        course: list[Tensor] = []  # after each epoch: the answers of the head that is best on what is kept back by then
        self.progress.begin(0, total)
        try:
            for epoch in range(epochs):
                for (batch,) in loader.epoch(epoch):
                    there = batch.to(self.opened.processes.device, self.opened.processes.dtype)
                    for name, extract in self.extractors.items():
                        tokens, mean = (part.cpu() for part in extract(there.inputs[0]))
                        for key, each in of[name].items():
                            heads[name][key].step(each.select(tokens, mean), batch.targets.cpu(), step, total)
                    step += 1
                    self.progress.step(step)
                course.append(self._answers(heads[MODEL], held_out[MODEL], labels[held], of[MODEL]))
        finally:
            self.progress.end()
        found: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "held_back": HELD_BACK}
        for name in self.extractors:
            key, number, rows = best_head(heads[name], held_out[name], labels[held])
            asked = self.pieces(self.split, name)
            logits = heads[name][key].logits(asked.select(of[name][key]))[number]
            chosen = {"features": key, "rate": heads[name][key].rates[number]}
            found[name] = {**accuracies(logits, asked.labels), "chosen": chosen, "heads": rows}
        asked = self.pieces(self.split, MODEL)
        best = max(float((answers == asked.labels).double().mean()) for answers in course)
        return {**found, "features": found[MODEL]["chosen"]["features"], "best_epoch_selected_on_test": best}

    def _answers(self, heads: dict[str, Heads], held: dict[str, Tensor], labels: Tensor, sets: dict[str, FeatureSet]) -> Tensor:
        """(n,) classes for the split, by the head that is best on what is kept back."""
        key, number, _ = best_head(heads, held, labels)
        return heads[key].logits(self.pieces(self.split, MODEL).select(sets[key]))[number].argmax(-1)

    # ---- Features

    def pieces(self, split: str, name: str) -> Pieces:
        if split not in self.stored:
            self.stored[split] = self._extracted(split)
        return self.stored[split][name]

    def _extracted(self, split: str) -> dict[str, Pieces]:
        """By every extractor, images as they are."""
        loader = self.opened.loader(split, self.batch_size)
        parts: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in self.extractors}
        labels: list[Tensor] = []
        self.progress.begin(0, loader.steps)
        try:
            for step, (batch,) in enumerate(loader.epoch(), 1):
                for message in batch.broken:
                    self.progress.note(message)
                there = batch.to(self.opened.processes.device, self.opened.processes.dtype)
                for name, extract in self.extractors.items():
                    tokens, mean = extract(there.inputs[: batch.count])
                    parts[name].append((tokens.cpu(), mean.cpu()))
                labels.append(batch.targets[: batch.count].cpu())
                self.progress.step(step)
        finally:
            self.progress.end()
        known, joined = torch.cat(labels), {}
        for name, some in parts.items():
            tokens, mean = (torch.cat(part) for part in zip(*some, strict=True))
            joined[name] = Pieces(tokens, mean, known)
        return joined

    def write_features(self) -> None:
        """eval/probe/features-SPLIT.safetensors, of the model alone, with a checksum of the weights they come from."""
        from safetensors.torch import save_file

        from ..common.files import replacing

        directory = self.opened.subject.directory
        for split, extracted in self.stored.items():
            own = extracted[MODEL]
            tensors = {"tokens": own.tokens, "mean": own.mean, "labels": own.labels}
            about = {name: str(value) for name, value in self.facts().items() if name not in ("split", "images")}
            digest = hashlib.sha256(own.tokens.contiguous().numpy().tobytes()).hexdigest()
            with replacing(directory.features_file(split)) as temporary:
                save_file(
                    {key: value.contiguous() for key, value in tensors.items()}, temporary, {**about, "tokens_sha256": digest}
                )

    def _tokens(self, model: nn.Module) -> Extractor:
        return lambda images: token_pieces(model, images, self.features.blocks)

    def _random(self) -> nn.Module:
        """The same network with weights that have learned nothing."""
        before = torch.get_rng_state()
        torch.manual_seed(self.seed)
        model = build_stored(self.opened.card.model).to(self.opened.processes.device, self.opened.processes.dtype).eval()
        torch.set_rng_state(before)
        try:
            return recalibrate(model, self._some_images(), batches=RECALIBRATED_ON)
        except ValueError:  # it has no norm with a memory
            return model

    def _some_images(self) -> Iterator[Tensor]:
        for (batch,) in self.opened.loader("train", self.batch_size).epoch():
            yield batch.inputs[: batch.count].to(self.opened.processes.dtype)

    def _augmented(self, index: Tensor, batch_size: int) -> Any:
        """Random crops, mirrored where that keeps the class, of these training images."""
        data, processes = self.data.subset("train", index), self.opened.processes
        how = LoaderOptions(
            train=True,
            batch_size=min(batch_size, len(index)),
            seed=self.seed,
            augment=AugmentConfig(),
            config=self.opened.loading,
            device=processes.device,
            dtype=processes.dtype,
        )
        return multicrop_loader(data, "train", how, [View(data.image_size, CROP, blur=0.0)], colours=0.0)


__all__ = ["ProtocolName", "probe_run", "verdict"]
