"""Write the files of a bundle, each compared with the model before anything is kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...common.files import write_text
from ...models.cascade import Cascade
from ...models.cascade.policy import ExitPolicy
from ..bundle.exit_rule import POLICY
from ..bundle.runner import Bundle, OnnxPart, Part, Pt2Part
from .cascade import ExitPart, StoppingCascade, example_inputs
from .closeness import Reference, check_close
from .program import frozen_copy
from .write_onnx import write_onnx
from .write_pt2 import write_pt2

Format = Literal["onnx", "pt2"]
BATCHES = (1, 2, 5)  # the sizes at which files are compared
EARLY_EXIT = "early_exit.onnx"


def write_model(
    model: nn.Module,
    directory: Path,
    input_size: Sequence[int],
    classes: list[str],
    *,
    format: Format,
    policy: ExitPolicy | None,
) -> dict[str, Any]:
    """Write the model's files into a directory; returns what the manifest says about them.

    ValueError if a file does not give the model's logits at every batch size of `BATCHES`.
    """
    model = frozen_copy(model)
    images = torch.randn(max(BATCHES), *input_size, generator=torch.Generator().manual_seed(0))
    facts: dict[str, Any] = {"backend": format, "input": list(input_size), "classes": classes}
    facts["parts"] = _write_parts(model, images[:2], directory, format)
    opener = OnnxPart if format == "onnx" else Pt2Part
    parts: list[Part] = [opener(directory / name) for name in facts["parts"]]
    bundle = Bundle(directory, facts, parts, None)
    reference = Reference.of(model, images)
    errors = {}
    for batch in BATCHES:
        found = bundle.exits(images[:batch].numpy())
        wanted = Reference(tuple(exact[:batch] for exact in reference.outputs), reference.own_error)
        errors[str(batch)] = check_close(f"the exported model at batch {batch}", found, wanted)
    facts["error"] = {"relative_to": "the largest logit of a float64 run", "at_batch": errors}
    facts["error"] |= {"model_in_float32": reference.own_error, "allowed": reference.tolerance}
    if isinstance(model, Cascade) and policy is not None:
        write_text(directory / POLICY, policy.to_json())
        if format == "onnx":
            _write_early_exit(model, policy, images, directory / EARLY_EXIT, reference)
            facts["early_exit"] = EARLY_EXIT
    return facts


def _write_parts(model: nn.Module, images: Tensor, directory: Path, format: Format) -> list[str]:
    if not isinstance(model, Cascade):
        _write(model, [images], directory / f"model.{format}", ["images"], ["logits"], format)
        return [f"model.{format}"]
    names = []
    for at, inputs in enumerate(example_inputs(model, images)):
        part = ExitPart(model, at).eval()
        names.append(f"exit{at}.{format}")
        _write(part, inputs, directory / names[-1], part.input_names, part.output_names, format)
    return names


def _write(module: nn.Module, inputs: list[Tensor], file: Path, takes: list[str], gives: list[str], format: Format) -> None:
    if format == "onnx":
        write_onnx(module, inputs, file, input_names=takes, output_names=gives)
    else:
        write_pt2(module, inputs, file)


def _write_early_exit(model: Cascade, policy: ExitPolicy, images: Tensor, file: Path, reference: Reference) -> None:
    module = StoppingCascade(model, policy).eval()
    write_onnx(module, [images[:1]], file, input_names=["images"], output_names=["logits", "exit"], any_batch=False)
    part = OnnxPart(file)
    for at in range(len(images)):
        logits, exit = part(images[at : at + 1].numpy())
        left = int(exit[0])
        wanted = Reference((reference.outputs[left][at : at + 1],), reference.own_error)
        check_close(f"{file.name}, image {at}", (logits,), wanted)
        exact = [torch.from_numpy(outputs[at : at + 1]) for outputs in reference.outputs]
        for k in range(left + 1):
            sure = policy.leaves(exact[k], k).item()
            near = np.isclose(policy.confidence(exact[k]).item(), policy.thresholds[k], atol=reference.tolerance)
            if sure != (k == left) and not near:  # nearer than rounding, either is right
                raise ValueError(
                    f"{file.name} let image {at} leave at exit {left + 1}, the policy does not; nothing was written"
                )
