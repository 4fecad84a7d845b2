"""Numbers produced by running released code; `golden/*/README.md` says how they were made."""

import json
import math
import zlib

import numpy as np
import pytest
import torch
from torch import Tensor

from dynavit.common.newer_state import newer_names
from dynavit.norms import Norm, create_norm

TOLERANCE = 1e-12


def normals(name: str, *shape: int) -> Tensor:
    """Standard normal numbers that only depend on their name."""
    generator = np.random.Generator(np.random.Philox(key=zlib.crc32(name.encode())))
    return torch.from_numpy(generator.standard_normal(shape))


def close(found: Tensor, expected: np.ndarray) -> None:
    expected = torch.from_numpy(np.array(expected))
    torch.testing.assert_close(found.detach(), expected.reshape(found.shape), rtol=TOLERANCE, atol=TOLERANCE)


def run(norm: Norm, x: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    x.requires_grad_()
    norm.zero_grad()
    y = norm(x)
    y.backward(cotangent)
    return y, x.grad


# ------------------------------------------------------------------------------------------- golden/dtn

# file -> norm, options, names in the release of parameters that we call otherwise
DTN_KIT = {
    "layernorm_c32": ("ln", {}, {}),
    "batchnorm_c32": ("bn", {}, {"running_mean": "bn.running_mean", "running_var": "bn.running_var"}),
    "instancenorm_c32": ("in", {"unbiased": True}, {}),
    "groupnorm_c32_g4": ("gn", {"heads": 4}, {}),
    "scalenorm_c32": ("scale", {"per_channel": True}, {"weight": "scale"}),
    "powernorm_c32_g4_w3": ("power", {"heads": 4, "backward": "dtn", "warmup": 3}, {}),
}


@pytest.mark.parametrize("case", DTN_KIT)
def test_dtn_kit(case, shared_golden):
    golden = np.load(shared_golden / "dtn" / f"{case}.npz")
    meta = json.loads(str(golden["meta"]))
    name, options, renamed = DTN_KIT[case]
    norm = create_norm(name, 32, dtype=torch.float64, **options)
    with torch.no_grad():
        for key, parameter in norm.named_parameters():
            noise = normals(renamed.get(key, key), *parameter.shape)
            if name == "scale":
                parameter.copy_(math.sqrt(32) * (1 + 0.1 * noise))
            else:
                parameter.copy_(1 + 0.1 * noise if key == "weight" else 0.1 * noise)
    steps = [f"step{i + 1}" for i in range(meta["steps"])]
    for step in [*steps, "eval"]:
        norm.train(step != "eval")
        seed, shape = f"{case}:{step}", tuple(meta["shape"])
        y, grad = run(norm, 0.5 + 1.5 * normals(f"input:{seed}", *shape), normals(f"cotangent:{seed}", *shape))
        close(y, golden[f"{step}.y"])
        close(grad, golden[f"{step}.grad.x"])
        for key, parameter in norm.named_parameters():
            close(parameter.grad, golden[f"{step}.grad.{renamed.get(key, key)}"])
        if step != "eval":
            for key, buffer in stored_buffers(norm).items():
                close(buffer, golden[f"{step}.buffer.{renamed.get(key, key)}"])


# -------------------------------------------------------------------------------------------- golden/un

# file -> norm, options, prefix of the names, how much noise was added to the parameters' start
UN_EXTRAS = {
    "x_dyt": ("dyt", {}, "dyt", {"alpha": 0.2, "weight": 0.2, "bias": 0.2}),
    "x_derf": ("derf", {}, "derf", {"alpha": 0.2, "weight": 0.2, "bias": 0.2, "shift": 0.2}),
    "x_powernorm": ("power", {"heads": 2, "warmup": 4}, "pn", {"weight": 0.2, "bias": 0.1}),
}


def stored_buffers(norm):
    others = dict(norm.named_parameters()).keys() | newer_names(norm)
    return {key: tensor for key, tensor in norm.state_dict().items() if key not in others}


@pytest.mark.parametrize("case", UN_EXTRAS)
def test_un_extras(case, shared_golden):
    golden = np.load(shared_golden / "un" / f"{case}.npz")
    name, options, prefix, noise = UN_EXTRAS[case]
    norm = create_norm(name, 6, dtype=torch.float64, **options)
    assert noise.keys() == dict(norm.named_parameters()).keys()
    with torch.no_grad():
        for key, parameter in norm.named_parameters():
            parameter += noise[key] * normals(f"{prefix}/{key}", *parameter.shape)
    scale = torch.linspace(0.25, 2, 6, dtype=torch.float64)
    shift = torch.linspace(-0.5, 0.5, 6, dtype=torch.float64)
    for step in range(len(golden["y"])):
        x, cotangent = (normals(f"{prefix}/{kind}/{step + 1}", 3, 5, 6) for kind in "xg")
        y, grad = run(norm, x * scale + shift, cotangent)
        close(y, golden["y"][step])
        close(grad, golden["gx"][step])
        for key, parameter in norm.named_parameters():
            close(parameter.grad, golden[f"g_{key}"][step])
        for key, buffer in stored_buffers(norm).items():
            close(buffer, golden[key][step])
    close(norm.eval()(normals(f"{prefix}/xeval", 3, 5, 6) * scale + shift), golden["y_eval"])
