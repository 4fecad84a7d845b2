"""Swapped models as files: the same logits after loading, whatever library the model is of, or a reason why not."""

import json
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import dynavit
from convert.models import HuggingFaceViT, LinearPatchViT, small_vit
from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.convert import stored, swap_norms
from dynavit.norms import Norm
from norms.guests import a_guest

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_norm.py"
IMAGE = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def disturbed(model):
    """Every parameter and buffer away from its start, so that nothing is right by chance."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.add_(0.02 * torch.rand(value.shape, generator=generator).to(value))
    return model.eval()


def torchvision_vit():
    ensure_torchvision()
    import torchvision

    return torchvision.models.VisionTransformer(64, 16, 2, 3, 48, 96, num_classes=5)


def hugging_face_vit():
    import transformers

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=64, patch_size=16, **sizes))


BUILDERS = [small_vit, torchvision_vit, LinearPatchViT, HuggingFaceViT]
BUILDERS += [hugging_face_vit] if find_spec("transformers") else []  # no dependency of ours; HuggingFaceViT stands in for it


def logits(model):
    output = model(IMAGE)
    return output if isinstance(output, torch.Tensor) else output["logits"]


class Tied(nn.Module):
    """A user's own module around a backbone, with a weight that is used twice and a buffer."""

    def __init__(self):
        super().__init__()
        self.backbone = LinearPatchViT()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.tensor(3))

    def forward(self, image):
        return self.second(self.first(self.backbone(image)))


@pytest.mark.parametrize(
    ("build", "norm"),
    [  # every library with one norm, every norm in one model
        pytest.param(build, norm, marks=[] if norm == "dtn" or build is small_vit else [pytest.mark.slow])
        for build in BUILDERS
        for norm in ("dtn", "sn", "ldfn")
    ],
)
def test_the_same_logits_after_loading(build, norm, tmp_path):
    start = "identity" if norm != "ldfn" else None
    model = disturbed(swap_norms(build(), norm, start=start, input_size=64))
    file = dynavit.save_swapped(model, tmp_path / "new" / "folder")
    assert file == tmp_path / "new" / "folder" / "model.safetensors"
    base = build()
    again = dynavit.load_swapped(file.parent, base)
    assert torch.equal(logits(again), logits(model)) and not again.training
    assert again.swap_plan == model.swap_plan
    assert not any(isinstance(module, Norm) for module in base.modules())
    assert dynavit.load_swapped(file, base, inplace=True) is base
    assert torch.equal(logits(base), logits(model))


def test_parts_tied_weights_and_precision_are_kept(tmp_path):
    """The part that was swapped knows its plan, weights that were one stay one, and bfloat16 is not widened."""
    model = Tied()
    model.backbone = swap_norms(model.backbone, "dtn", start="near")
    model = disturbed(model).bfloat16()
    dynavit.save_swapped(model, tmp_path)
    again = dynavit.load_swapped(tmp_path, Tied())
    assert again.second.weight is again.first.weight and again.calls.item() == 3
    assert {value.dtype for value in again.parameters()} == {torch.bfloat16}
    image = IMAGE.bfloat16()
    assert torch.equal(again(image), model(image))


def test_a_model_that_was_swapped_twice(tmp_path):
    once = swap_norms(small_vit(), "dtn", where="blocks.*.norm1", start="identity")
    twice = disturbed(swap_norms(once, "rms", where="blocks.*.norm2", start="fresh"))
    dynavit.save_swapped(twice, tmp_path)
    again = dynavit.load_swapped(tmp_path, small_vit())
    assert torch.equal(again(IMAGE), twice(IMAGE))
    assert again.swap_plan == twice.swap_plan and again.swap_plan.earlier == once.swap_plan


def test_wrapped_models_are_saved_bare(tmp_path):
    model = disturbed(swap_norms(small_vit(), "dtn"))
    dynavit.save_swapped(nn.DataParallel(model), tmp_path)
    dynavit.save_swapped(torch.compile(model, backend="eager"), tmp_path, overwrite=True)
    assert torch.equal(dynavit.load_swapped(tmp_path, small_vit())(IMAGE), model(IMAGE))


def test_nothing_else_in_the_folder_is_touched(tmp_path):
    model = swap_norms(small_vit(), "dtn")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"somebody's")
    with pytest.raises(ValueError, match="exists.*overwrite=True"):
        dynavit.save_swapped(model, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"somebody's"
    dynavit.save_swapped(model, tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    model = disturbed(swap_norms(small_vit(), "dtn"))
    file = dynavit.save_swapped(model, tmp_path)
    before = file.read_bytes()

    def interrupted(state, path, **_):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(stored, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dynavit.save_swapped(disturbed(model), tmp_path, overwrite=True)
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


def test_what_does_not_fit_is_named(tmp_path):
    dynavit.save_swapped(swap_norms(small_vit(), "dtn"), tmp_path)
    wider = small_vit(num_heads=3)
    wider.head = nn.Linear(192, 9)
    with pytest.raises(ValueError, match=r"head.weight is \(7, 192\), the model has \(9, 192\)"):
        dynavit.load_swapped(tmp_path, wider)
    shallow = small_vit()
    del shallow.blocks[1]
    with pytest.raises(ValueError, match="plan of another model.*blocks.1.norm1"):
        dynavit.load_swapped(tmp_path, shallow)
    deep = small_vit()
    deep.blocks.append(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="blocks.2.weight is missing"):
        dynavit.load_swapped(tmp_path, deep)
    with pytest.raises(ValueError, match="has no swap plan"):
        dynavit.save_swapped(small_vit(), tmp_path / "other")
    with pytest.raises(ValueError, match="does not exist; dynavit.save_swapped writes it"):
        dynavit.load_swapped(tmp_path / "other", small_vit())
    with pytest.raises(ValueError, match="meta device"):
        dynavit.load_swapped(tmp_path, small_vit().to("meta"))


def test_damage_is_named(tmp_path):
    file = dynavit.save_swapped(swap_norms(small_vit(), "dtn"), tmp_path)
    whole = file.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + length])

    def with_header(change):
        swap = json.loads(header["__metadata__"][stored.HEADER])
        change(swap)
        state = load_file(file)
        save_file(state, file, metadata={stored.HEADER: json.dumps(swap)})

    damages = {
        "truncated": lambda: file.write_bytes(whole[:-100]),
        "SHA-256": lambda: file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1])),
        "no swap plan in its header": lambda: save_file(load_file(file), file),
        "another version.*swapped model 9": lambda: with_header(lambda swap: swap.update(format="dynavit swapped model 9")),
        "another version.*plans": lambda: with_header(lambda swap: swap.pop("plans")),
        "plan of another model.*rows": lambda: with_header(lambda swap: swap["plans"][""].pop("rows")),
        "plan of another model.*no nonsense": lambda: with_header(lambda swap: swap["plans"][""].update(nonsense=1)),
    }
    for message, damage in damages.items():
        file.write_bytes(whole)
        damage()
        with pytest.raises(ValueError, match=message):
            dynavit.load_swapped(tmp_path, small_vit())
    file.write_bytes(whole)
    dynavit.load_swapped(tmp_path, small_vit())


def test_a_norm_of_ones_own_is_asked_for_by_its_file(tmp_path):
    with a_guest(EXAMPLE):
        model = disturbed(swap_norms(small_vit(), "mine"))
        dynavit.save_swapped(model, tmp_path)
        assert torch.equal(dynavit.load_swapped(tmp_path, small_vit())(IMAGE), model(IMAGE))
    with pytest.raises(ValueError, match=r"the norm 'mine' of .*my_norm\.py.*load_plugin"):
        dynavit.load_swapped(tmp_path, small_vit())
