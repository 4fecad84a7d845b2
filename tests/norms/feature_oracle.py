"""Feature normalisation written out plainly: one channel, a list of images, Python numbers."""

import math
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, median

Images = list[list[float]]


def expert_pairs(images: Images, experts: tuple[str, ...], eps: float) -> list[tuple[float, float]]:
    """(centre, scale) of each expert in one batch."""
    tokens = [value for image in images for value in image]
    mean = fmean(tokens)
    var = fmean((value - mean) ** 2 for value in tokens)
    images = [image for image in images if image]
    middle = fmean((max(image) + min(image)) / 2 for image in images)

    def spread(image: list[float]) -> float:
        if len(image) == 1:
            return math.sqrt(var)
        n = len(image)
        return (max(image) - min(image)) / (2 * NormalDist().inv_cdf((n - 3 / 8) / (n + 1 / 4)))

    pairs = {
        "zscore": (mean, math.sqrt(var + eps)),
        "minmax": (middle, math.sqrt(fmean(spread(image) for image in images) ** 2 + eps)),
        "rms": (0.0, math.sqrt(fmean(value * value for value in tokens) + eps)),
    }
    return [pairs[expert] for expert in experts]


@dataclass
class Channel:
    """The memory of one channel and its training step."""

    experts: tuple[str, ...]
    centre_shares: list[float]
    scale_shares: list[float]
    gamma: float
    beta: float
    eta: float
    alpha: float
    tau: float
    eps: float
    r_max: float
    d_max: float
    centres: list[float] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    history: list[tuple[list[float], list[float]]] = field(default_factory=list)

    def mix(self, centres: list[float], logs: list[float]) -> tuple[float, float]:
        centre = sum(w * c for w, c in zip(self.centre_shares, centres, strict=True))
        return centre, math.exp(sum(w * value for w, value in zip(self.scale_shares, logs, strict=True)))

    def step(self, images: Images, grads: Images, opening: float) -> tuple[Images, Images]:
        """Outputs and input gradients; then the memory moves."""
        pairs = expert_pairs(images, self.experts, self.eps)
        centres, logs = [c for c, _ in pairs], [math.log(d) for _, d in pairs]
        c, d = self.mix(centres, logs)
        C, D = self.mix(self.centres, self.logs) if self.history else (c, d)
        r_max, d_max = self.r_max**opening, self.d_max * opening
        r = min(max(d / D, 1 / r_max), r_max)
        delta = min(max((c - C) / D, -d_max), d_max)
        y = [[self.gamma * (r * (x - c) / d + delta) + self.beta + self.eta * x for x in image] for image in images]
        ((mean, sigma),) = expert_pairs(images, ("zscore",), self.eps)
        pairs_of = [(x, g) for image, dy in zip(images, grads, strict=True) for x, g in zip(image, dy, strict=True)]
        mean_dy = fmean(g for _, g in pairs_of)
        mean_dyz = fmean(g * (x - mean) / sigma for x, g in pairs_of)
        dx = [
            [
                self.gamma * r / d * (g - mean_dy - (x - mean) / sigma * mean_dyz) + self.eta * g
                for x, g in zip(image, dy, strict=True)
            ]
            for image, dy in zip(images, grads, strict=True)
        ]
        self.remember(centres, logs)
        return y, dx

    def remember(self, centres: list[float], logs: list[float]) -> None:
        if len(self.history) >= 8:
            recent = self.history[-8:]
            for k in range(len(self.experts)):
                unit = math.exp(fmean(values[k] for _, values in recent))
                centres[k] = self.held_back(centres[k], [values[k] for values, _ in recent], unit)
                logs[k] = self.held_back(logs[k], [values[k] for _, values in recent], 1.0)
        if not self.history:
            self.centres, self.logs = list(centres), list(logs)
        else:
            mixed = self.alpha, 1 - self.alpha
            self.centres = [mixed[0] * old + mixed[1] * new for old, new in zip(self.centres, centres, strict=True)]
            self.logs = [mixed[0] * old + mixed[1] * new for old, new in zip(self.logs, logs, strict=True)]
        self.history.append((centres, logs))

    def held_back(self, new: float, recent: list[float], unit: float) -> float:
        middle = median(recent)
        reach = self.tau * max(median(abs(value - middle) for value in recent), 0.05 * unit)
        return min(max(new, middle - reach), middle + reach)
