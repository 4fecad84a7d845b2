"""The columns of the table of norms. Each takes the name of a norm, tries it, and raises if a number is not the expected one.

Expected is what the same layer gives in an ordinary call, in the middle of its training: with weights that are not 1 and 0, and
running statistics that have moved.
"""

import copy
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from tried_cell import Cell, first_line

import dynavit

DIM, HEADS, SAMPLES, SIDE = 32, 4, 3, 4
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
Found = tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]


def make(name: str, dtype: torch.dtype = torch.float32) -> dynavit.Norm:
    torch.manual_seed(0)
    norm = dynavit.create_norm(name, DIM, heads=HEADS)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for seed in (1, 2):
            norm(tokens(seed=seed))
    if hasattr(norm, "set_progress"):
        norm.set_progress(1, 2)
    return norm.to(dtype)


def tokens(samples: int = SAMPLES, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, SIDE * SIDE, DIM, generator=noise)
    return (x * torch.linspace(0.5, 2, DIM) + torch.linspace(-1, 1, SIDE * SIDE)[:, None]).to(dtype)


def padding() -> Tensor:
    """True: a real token. Every sample has its own number of them."""
    return torch.arange(SIDE * SIDE) < torch.tensor([16, 11, 5])[:, None]


def run(norm: dynavit.Norm, x: Tensor, call: Callable[..., Tensor] | None = None, mask: Tensor | None = None) -> Found:
    """Output, gradients of input and parameters, and the state after one step, as a checkpoint would hold it."""
    x = x.clone().requires_grad_()
    norm.zero_grad()
    call = norm if call is None else call  # not `or`: a compiled module asks for its length
    y = call(x) if mask is None else call(x, mask=mask)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype))
    assert x.grad is not None
    gradients = {key: value.grad for key, value in norm.named_parameters() if value.grad is not None}
    return y.detach(), x.grad, gradients, norm.state_dict()


def same(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, **CLOSE)


def both_modes(name: str) -> list[dynavit.Norm]:
    return [make(name).train(), make(name).eval()]


# ---- Columns


def eager(name: str) -> None:
    """Forward and backward, training and evaluation, against float64."""
    for norm in both_modes(name):
        exact = run(copy.deepcopy(norm).double(), tokens(dtype=torch.float64))
        found = run(norm, tokens())
        assert len(found[2]) == len(list(norm.parameters())), "a parameter has no gradient"
        for part, expected in zip(found[:2], exact[:2], strict=True):
            same(part.double(), expected)


def compiled(name: str) -> None:
    """torch.compile to one graph, run by aot_eager: a training step without and with a mask. What inductor makes of every norm
    is compared by the slow tests (tests/norms/test_contract.py)."""
    torch.compiler.reset()
    for mask in (None, padding()):
        norm = make(name)
        other = copy.deepcopy(norm)
        same(
            run(other, tokens(), torch.compile(other, fullgraph=True, backend="aot_eager"), mask),
            run(norm, tokens(), mask=mask),
        )


def exported(name: str) -> None:
    """torch.export in evaluation mode with any number of samples."""
    norm = make(name).eval()
    program = torch.export.export(norm, (tokens(),), dynamic_shapes=({0: torch.export.Dim("samples", min=1, max=64)},))
    for samples in (SAMPLES, 5):
        same(program.module()(tokens(samples)), norm(tokens(samples)))


def onnx(name: str) -> None:
    """An ONNX file with any number of samples, run by onnxruntime."""
    import onnxruntime

    from dynavit.deploy.export.write_onnx import write_onnx

    norm = make(name).eval()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "norm.onnx"
        write_onnx(norm, [tokens(2)], file, input_names=["x"], output_names=["y"])
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        for samples in (1, 5):
            same(torch.from_numpy(session.run(None, {"x": tokens(samples).numpy()})[0]), norm(tokens(samples)))


def amp(name: str) -> None:
    """Autocast to bfloat16 and float16 changes nothing; half-precision tokens cost one rounding."""
    for dtype, rounding in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        for norm in both_modes(name):
            expected = run(copy.deepcopy(norm), tokens())
            half, exact = copy.deepcopy(norm), copy.deepcopy(norm)
            with torch.autocast("cpu", dtype):
                same(run(norm, tokens()), expected)
                y = half(tokens(dtype=dtype))
            assert y.dtype == dtype
            torch.testing.assert_close(y.float(), exact(tokens(dtype=dtype).float()), rtol=rounding, atol=1e-4)


def checkpointing(name: str) -> None:
    """Recomputed in the backward pass, reentrant or not: the same gradients, and statistics that have moved once."""
    for reentrant in (False, True):
        norm = make(name)
        other = copy.deepcopy(norm)
        same(run(other, tokens(), partial(checkpoint, other, use_reentrant=reentrant)), run(norm, tokens()))


def vmap(name: str) -> Cell | None:
    """torch.func: gradients of each sample by vmap over grad, against a loop."""

    def alone(norm: dynavit.Norm, sample: Tensor) -> Tensor:
        return norm(sample[None]).pow(3).sum()

    refused = ""
    for norm in both_modes(name):
        plain = copy.deepcopy(norm)
        try:
            found = torch.func.vmap(torch.func.grad(lambda sample, norm=norm: alone(norm, sample)))(tokens())
        except NotImplementedError as error:
            if not norm.training:
                raise
            refused = first_line(error).replace(type(norm).__name__, "the layer")
            continue
        looped = [sample.clone().requires_grad_() for sample in tokens()]
        same(found, torch.stack([torch.autograd.grad(alone(plain, sample), sample)[0] for sample in looped]))
    return Cell("eval", refused) if refused else None


def masks(name: str) -> None:
    """What stands in padding, NaN too, changes neither outputs nor gradients nor statistics; the output there is 0."""
    for number in range(2):
        mask = padding()
        dirty = torch.where(mask[..., None], tokens(), torch.nan)
        clean, found = (run(both_modes(name)[number], x, mask=mask) for x in (tokens(), dirty))
        same(found, clean)
        assert not found[0][~mask].any(), "padding is not 0 in the output"


def fold(name: str) -> Cell | None:
    """`dynavit.fold` of a two-block ViT at the end of its training: no norm of this kind is left in it."""
    torch.manual_seed(0)
    model = dynavit.create_model("vit_micro", norm=name, depth=2, img_size=16, patch_size=4, num_classes=3)
    kind = type(make(name))
    with torch.no_grad():
        for _ in range(2):
            model.train()(torch.randn(4, 3, 16, 16))
        for norm in (module for module in model.modules() if isinstance(module, kind)):
            for parameter in norm.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            if hasattr(norm, "set_progress"):
                norm.set_progress(1, 1)
    report = dynavit.fold(model.eval()).fold_report
    rows = [row for row in report.rows if row.norm == kind.__name__]
    if rows and all(row.action == "folded" for row in rows):
        return None
    reasons = list(dict.fromkeys(row.reason for row in rows if row.reason))
    return Cell("partly" if any(row.action != "left" for row in rows) else "no", "; ".join(reasons) or "not an affine map")


COLUMNS: dict[str, Callable[[str], Cell | None]] = {
    "eager": eager,
    "compile": compiled,
    "export": exported,
    "ONNX": onnx,
    "AMP": amp,
    "checkpointing": checkpointing,
    "vmap": vmap,
    "masks": masks,
    "fold": fold,
}
FAST = ("eager", "AMP", "checkpointing", "vmap", "masks")
