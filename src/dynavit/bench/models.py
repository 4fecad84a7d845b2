"""Cost of a norm inside a model: size beside the paper's figures, and a training step beside the same model with LN."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..common.files import write_json
from ..common.registry import nearest_match_error
from ..engine.device import best_device, usable_device
from .flops import count_macs
from .machine import describe_machine
from .memory import peak_megabytes
from .norms import dtn_kernels
from .timing import time_interleaved


@dataclass(frozen=True)
class PaperRow:
    """One line of the DTN paper's Tables 1, 2, 9 and 12."""

    label: str
    model: str
    dtn_options: dict[str, Any]
    params_m: float | None
    gmacs_ln: float
    gmacs_dtn: float | None


# The paper's LN baselines have their class token from the start; its DTN figures fit one DTN per block (norm_sites="attn").
PAPER = [
    PaperRow("ViT-T", "vit_tiny", {}, 5.7, 1.26, None),
    PaperRow("ViT-T*", "vit_tiny_star", {}, 5.7, 1.26, 1.40),
    PaperRow("ViT-S", "vit_small", {}, 22.1, 4.60, 4.88),
    PaperRow("ViT-S*", "vit_small_star", {}, 27.8, 5.77, 6.08),
    PaperRow("ViT-B", "vit_base", {}, 86.5, 17.58, 18.13),
    PaperRow("ViT-B*", "vit_base_star", {}, 86.5, 17.58, 18.13),
    PaperRow("PVT-Tiny", "pvt_tiny", {}, None, 1.90, 2.05),
    PaperRow("PVT-Small", "pvt_small", {}, None, 3.80, 4.15),
    PaperRow("PVT-Large", "pvt_large", {}, 61.4, 9.8, 10.5),
    PaperRow("Swin-T", "swin_tiny_patch4_window7_224", {}, 29.0, 4.51, 5.09),
    PaperRow("Swin-S", "swin_small_patch4_window7_224", {}, 50.0, 8.7, 9.4),
    PaperRow("PVTv2-B3", "pvt_v2_b3", {}, 45.2, 6.9, 7.4),
    PaperRow("LeViT-128S", "levit_128s", {"where": {"site": "linear_bn"}}, 7.8, 0.305, 0.320),
    PaperRow("T2T-ViT_t-14", "t2t_vit_t_14", {}, 21.5, 6.1, 6.4),
]

STEP_MODELS = {
    "vit_small_star": "ViT-S*, DTN in both norms of 10 blocks",
    "pvt_tiny": "PVT-Tiny, DTN in stages 1-3, not pooled",
    "swin_tiny_patch4_window7_224": "Swin-T, DTN in all blocks",
}
TIMM_TWIN = ("vit_small", "vit_small_patch16_224")


@dataclass(frozen=True)
class SizeRow:
    label: str
    model: str
    parameters_ln: int
    parameters_dtn: int | None
    gmacs_ln: float
    gmacs_dtn: float | None
    paper_params_m: float | None
    paper_gmacs_ln: float
    paper_gmacs_dtn: float | None


@dataclass(frozen=True)
class StepRow:
    """A training step (forward, loss, backward, AdamW). The ratio is (median over rounds, lower, upper quartile)."""

    model: str
    arm: str
    step_ms: float
    ratio: tuple[float, float, float]
    peak_mb: float | None
    peak_ratio: float | None


@dataclass(frozen=True)
class ModelBench:
    machine: dict[str, Any]
    sizes: list[SizeRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        tables = []
        if self.sizes:
            header = ["model", "params LN", "params DTN", "paper", "GMACs LN", "paper", "GMACs DTN", "paper"]
            tables.append(("Size at the paper's resolution, 224 px", header, [_size_cells(row) for row in self.sizes]))
        if self.steps:
            header = ["model", "norm", "step", "times LN's", "quartiles", "peak memory", "times LN's"]
            title = f"Training step, batch {self.machine['batch']}, {self.machine['img_size']} px, on {self.machine['device']}"
            tables.append((title, header, [_step_cells(row) for row in self.steps]))
        return tables


def run_model_bench(
    models: list[str] | None = None,
    sizes: bool = True,
    steps: bool = True,
    repeats: int = 7,
    batch: int = 8,
    img_size: int = 224,
    device: str | None = None,
    threads: int | None = None,
    out: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> ModelBench:
    """Parameters and multiply-adds of the paper's models, and training steps with DTN (both inits) beside LN."""
    known = {row.model for row in PAPER}
    for name in models or []:
        if name not in known:
            raise nearest_match_error("model of this benchmark", name, known)
    where = best_device() if device is None else usable_device(device)
    tell = progress or (lambda message: None)
    threads_before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        facts = {"repeats": repeats, "batch": batch, "img_size": img_size}
        result = ModelBench(describe_machine(where) | facts | dtn_kernels(where))
        for paper in PAPER if sizes else []:
            if models is None or paper.model in models:
                tell(f"size of {paper.label}")
                result.sizes.append(_measure_size(paper))
        for name in STEP_MODELS if steps else []:
            if models is None or name in models:
                tell(f"training steps of {name}")
                result.steps.extend(_measure_steps(name, repeats, batch, img_size, where, tell))
        if steps and (models is None or TIMM_TWIN[0] in models):
            tell("our ViT-S beside timm's")
            result.steps.extend(_measure_twins(repeats, batch, img_size, where))
    finally:
        torch.set_num_threads(threads_before)
    if out is not None:
        write_json(out, asdict(result))
    return result


def _create(name: str, norm: str | None = None, **options: Any) -> nn.Module:
    from ..models import create_model  # timm is slow to import

    return create_model(name, norm, **options)


def _measure_size(paper: PaperRow) -> SizeRow:
    image = torch.zeros(1, 3, 224, 224)
    start = {"class_token": "start"} if paper.model.startswith("vit_") else {}
    plain = _create(paper.model, **start).eval()
    parameters, gmacs = None, None
    if paper.gmacs_dtn is not None:
        swapped = _create(paper.model, "dtn", **paper.dtn_options).eval()
        parameters, gmacs = _parameters(swapped), count_macs(swapped, image) / 1e9
    return SizeRow(
        paper.label,
        paper.model,
        _parameters(plain),
        parameters,
        count_macs(plain, image) / 1e9,
        gmacs,
        paper.params_m,
        paper.gmacs_ln,
        paper.gmacs_dtn,
    )


def training_arm(name: str, arm: str, batch: int, img_size: int, device: torch.device) -> Callable[[], None]:
    """One training step of a model: `arm` is "ln" or one of DTN's inits."""
    torch.manual_seed(0)
    options: dict[str, Any] = {} if arm == "ln" else {"norm": "dtn", "norm_options": {"init": arm}}
    return _step_of(_create(name, num_classes=1000, **options), batch, img_size, device)


def _step_of(model: nn.Module, batch: int, img_size: int, device: torch.device) -> Callable[[], None]:
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    images, labels = torch.randn(batch, 3, img_size, img_size).to(device), torch.arange(batch, device=device)

    def step() -> None:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _measure_steps(
    name: str, repeats: int, batch: int, img_size: int, device: torch.device, tell: Callable[[str], None]
) -> list[StepRow]:
    arms = ("ln", "local", "trunc_normal")
    steps = {arm: training_arm(name, arm, batch, img_size, device) for arm in arms}
    timings = time_interleaved(steps, repeats, inner=1, warmup=2, device=device)
    tell(f"peak memory of {name}")
    peaks = {arm: _peak_megabytes(name, arm, batch, img_size, device) for arm in arms}
    return [
        StepRow(
            name,
            arm if arm == "ln" else f"dtn ({arm})",
            1e3 * timings[arm].median,
            timings[arm].ratio(timings["ln"]),
            peaks[arm],
            _over(peaks[arm], peaks["ln"]),
        )
        for arm in arms
    ]


def _measure_twins(repeats: int, batch: int, img_size: int, device: torch.device) -> list[StepRow]:
    ours, theirs = TIMM_TWIN
    torch.manual_seed(0)
    # The same network: qkv bias, class token from the start.
    models = {
        f"timm {theirs}": _create(theirs, num_classes=1000),
        f"ours {ours}, qkv bias, class token first": _create(ours, num_classes=1000, qkv_bias=True, class_token="start"),
    }
    steps = {name: _step_of(model, batch, img_size, device) for name, model in models.items()}
    timings = time_interleaved(steps, repeats, inner=1, device=device)
    base = timings[f"timm {theirs}"]
    return [StepRow(name, "ln", 1e3 * timing.median, timing.ratio(base), None, None) for name, timing in timings.items()]


def _peak_megabytes(name: str, arm: str, batch: int, img_size: int, device: torch.device) -> float | None:
    """Memory of the device that a fresh process grows by at most in two training steps, model and optimiser included.

    None where it is not known.
    """
    code = (
        "import sys, torch, dynavit.models\n"
        "from dynavit.bench.memory import peak_megabytes\n"
        "from dynavit.bench.models import training_arm\n"
        "name, arm, batch, size, device, threads = sys.argv[1:]\n"
        "torch.set_num_threads(int(threads))\n"
        "device = torch.device(device)\n"
        "before = peak_megabytes(device)\n"
        "step = training_arm(name, arm, int(batch), int(size), device)\n"
        "step(); step()\n"
        "print(peak_megabytes(device) - before)\n"
    )
    if peak_megabytes(device) is None:
        return None
    arguments = [name, arm, str(batch), str(img_size), str(device), str(torch.get_num_threads())]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _over(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _size_cells(row: SizeRow) -> list[str]:
    number = partial(_number, digits=3)
    return [
        row.label,
        f"{row.parameters_ln / 1e6:.2f}M",
        "-" if row.parameters_dtn is None else f"{row.parameters_dtn / 1e6:.2f}M",
        "-" if row.paper_params_m is None else f"{row.paper_params_m:.1f}M",
        number(row.gmacs_ln),
        number(row.paper_gmacs_ln),
        number(row.gmacs_dtn),
        number(row.paper_gmacs_dtn),
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _step_cells(row: StepRow) -> list[str]:
    middle, low, high = row.ratio
    peak = ["-", "-"] if row.peak_mb is None or row.peak_ratio is None else [f"{row.peak_mb:.0f} MB", f"{row.peak_ratio:.2f}x"]
    return [row.model, row.arm, f"{row.step_ms:.0f} ms", f"{middle:.2f}x", f"{low:.2f}-{high:.2f}", *peak]
