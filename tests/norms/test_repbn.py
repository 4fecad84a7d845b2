"""`repbn` and `prepbn`: a batch norm beside its input, and the way to it from LayerNorm."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynavit import create_model, swap_norms
from dynavit.norms import PRepBN, RepBN, create_norm
from norms.test_goldens import normals

DIM = 6


def batch(seed: int = 0, *shape: int) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    scale, shift = torch.linspace(0.25, 2, DIM), torch.linspace(-0.5, 0.5, DIM)
    return torch.randn(*(shape or (3, 5)), DIM, generator=noise, dtype=torch.float64) * scale + shift


def scattered(norm: nn.Module) -> nn.Module:
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype)
    return norm


def rep_bn(norm: RepBN | PRepBN, x: Tensor) -> Tensor:
    """BN(x) + eta x by torch's own batch norm."""
    return F.batch_norm(x.mT, None, None, norm.weight, norm.bias, training=True, eps=norm.eps).mT + norm.eta * x


# ----------------------------------------------------------------------------------------------------- repbn


def test_repbn_is_batch_norm_and_a_multiple_of_the_input():
    norm = scattered(create_norm("repbn", DIM, dtype=torch.float64))
    plain = create_norm("bn", DIM, dtype=torch.float64)
    plain.load_state_dict(norm.state_dict(), strict=False)
    for seed in range(3):
        x = batch(seed)
        torch.testing.assert_close(norm(x), rep_bn(norm, x))
        plain(x)
    torch.testing.assert_close(norm.eval()(x), plain.eval()(x) + norm.eta * x)


def test_repbn_is_a_batch_norm_with_other_affine_parameters():
    """The lemma: BN(x; a, b) + eta x = BN(x; a + eta s, b + eta mu)."""
    norm = scattered(create_norm("repbn", DIM, dtype=torch.float64))
    norm(batch())
    other = create_norm("bn", DIM, dtype=torch.float64)
    other.load_state_dict(norm.state_dict(), strict=False)
    with torch.no_grad():
        other.weight += norm.eta * torch.sqrt(norm.running_var + norm.eps)
        other.bias += norm.eta * norm.running_mean
    torch.testing.assert_close(norm.eval()(batch(1)), other.eval()(batch(1)))


@pytest.mark.parametrize("name", ["repbn", "prepbn"])
def test_eta_starts_where_asked(name):
    assert create_norm(name, DIM).eta.tolist() == [1.0]
    assert create_norm(name, DIM, eta=0.0).eta.tolist() == [0.0]
    assert create_norm(name, DIM, affine=False).eta.tolist() == [1.0]
    assert create_norm(name, DIM, eta=0.5).scalars()["eta"] == 0.5


# ---------------------------------------------------------------------------------------------------- prepbn


@pytest.mark.parametrize(("step", "blend"), [(0, 1.0), (20, 1.0), (35, 0.75), (50, 0.5), (80, 0.0), (99, 0.0)])
def test_prepbn_mixes_layer_norm_and_repbn(step, blend):
    norm = scattered(create_norm("prepbn", DIM, warmup=0.2, anneal=0.6, dtype=torch.float64))
    norm.set_progress(step, 100)
    assert norm.blend.item() == norm.scalars()["blend"] == pytest.approx(blend, abs=1e-9)
    x = batch()
    layer_norm = F.layer_norm(x, (DIM,), norm.ln_weight, norm.ln_bias, eps=1e-6)
    torch.testing.assert_close(norm(x), blend * layer_norm + (1 - blend) * rep_bn(norm, x))


@pytest.mark.parametrize("name", ["prepbn", "ldfn"])
def test_training_an_annealed_norm_again_keeps_its_function(name):
    """The share of LayerNorm never rises; a reset brings it back."""
    norm = create_norm(name, DIM, dtype=torch.float64)
    for step in range(10):
        norm.set_progress(step, 10)
        norm(batch(step))
    again = create_norm(name, DIM, dtype=torch.float64)
    again.load_state_dict(norm.state_dict())
    again.set_progress(0, 10)
    assert again.blend == 0
    assert torch.equal(again.eval()(batch()), norm.eval()(batch()))
    again.reset_parameters()
    assert again.blend == 1


def test_moments_are_collected_while_the_layer_is_still_layer_norm():
    norm, plain = create_norm("prepbn", DIM, warmup=0.5, anneal=0.3), create_norm("bn", DIM)
    norm.set_progress(0, 100)
    norm(batch().float()), plain(batch().float())
    torch.testing.assert_close((norm.running_mean, norm.running_var), (plain.running_mean, plain.running_var))


def test_evaluation_shows_what_is_trained_or_the_end():
    blended = scattered(create_norm("prepbn", DIM, dtype=torch.float64))
    for seed in range(3):
        blended(batch(seed))
    final, end = copy.deepcopy(blended), copy.deepcopy(blended)
    final.evaluate = "final"
    end.set_progress(1, 1)
    blended.set_progress(2, 5)
    x = batch(3)
    layer_norm = F.layer_norm(x, (DIM,), blended.ln_weight, blended.ln_bias, eps=1e-6)
    scale, shift = end.eval().affine_map()
    torch.testing.assert_close(blended.eval()(x), 0.5 * layer_norm + 0.5 * (x * scale + shift))
    torch.testing.assert_close(final.eval()(x), x * scale + shift)
    torch.testing.assert_close(end(x), x * scale + shift)


def test_an_average_of_weights_anneals_too():
    """Averages copy whole numbers: a smoothed blend would never come down to 0."""
    norm = create_norm("prepbn", DIM)
    assert not norm.state_dict()["blend_parts"].is_floating_point()
    norm.set_progress(1, 2)
    for wide in (norm.blend, norm.bfloat16().blend):
        assert wide.item() == pytest.approx(1 - 0.5 / 0.8, abs=1e-2)


def test_options_are_checked():
    for wrong in ({"warm_steps": 3}, {"anneal_steps": 0}, {"anneal_steps": 5, "warm_steps": -1}):
        with pytest.raises(ValueError, match="anneal_steps is the number of steps"):
            create_norm("prepbn", DIM, **wrong)
    with pytest.raises(ValueError, match="together at most 1; got 0.5 and 0.8"):
        create_norm("prepbn", DIM, warmup=0.5)
    with pytest.raises(ValueError, match="'blend' or 'final'; got 'both'"):
        create_norm("prepbn", DIM, evaluate="both")


# ---------------------------------------------------------------------------------------------- counted steps


def test_counted_steps_follow_commits():
    norm = create_norm("prepbn", DIM, warm_steps=2, anneal_steps=4)
    blends = []
    for step in range(8):
        norm.set_progress(step, 8)  # a loop may tell; here it plays no part
        norm(batch(step).float())
        if step == 1:
            assert torch.equal(norm.running_mean, torch.zeros(DIM)), "no moments in the warm phase"
        blends.append(norm.blend.item())
        norm.commit_statistics()
    assert blends == [1, 1, 1, 0.75, 0.5, 0.25, 0, 0]
    assert norm.running_mean.abs().max() > 0


def test_counting_survives_a_state_dict():
    norm, later = (create_norm("prepbn", DIM, warm_steps=1, anneal_steps=4) for _ in range(2))
    for _ in range(3):
        norm.commit_statistics()
    later.load_state_dict(norm.state_dict())
    for one in (norm, later):
        one.commit_statistics()
    assert norm.blend.item() == later.blend.item() == 0.25


def test_counted_annealing_can_be_ended():
    norm = create_norm("prepbn", DIM, anneal_steps=100).eval()
    with pytest.raises(RuntimeError, match=r"set_progress\(1, 1\)"):
        norm.affine_map()
    norm.set_progress(1, 1)
    norm.commit_statistics()
    norm.affine_map()


OURS = {
    "ln_weight": "norm1.weight",
    "ln_bias": "norm1.bias",
    "eta": "norm2.alpha",
    "weight": "norm2.bn.weight",
    "bias": "norm2.bn.bias",
}


def test_the_release(shared_golden):
    golden = np.load(shared_golden / "un" / "x_prepbn.npz")

    def close(found: Tensor, expected: np.ndarray, tolerance: float) -> None:
        torch.testing.assert_close(found.detach(), torch.from_numpy(np.array(expected)), rtol=tolerance, atol=tolerance)

    norm = create_norm("prepbn", DIM, warm_steps=2, anneal_steps=6, evaluate="final", dtype=torch.float64)
    with torch.no_grad():
        for ours, theirs in OURS.items():
            parameter = norm.get_parameter(ours)
            parameter.copy_((0.0 if "bias" in theirs else 1.0) + 0.2 * normals(f"prepbn/{theirs}", *parameter.shape))
    scale, shift = (torch.linspace(*ends, DIM, dtype=torch.float64) for ends in ((0.25, 2), (-0.5, 0.5)))
    for step in range(12):
        x, cotangent = (normals(f"prepbn/{kind}/{step + 1}", 3, 5, DIM) for kind in "xg")
        x = (x * scale + shift).requires_grad_()
        norm.zero_grad()
        y = norm(x)
        y.backward(cotangent)
        norm.commit_statistics()
        # The release computes its blend in float32.
        close(y, golden["y"][step], 1e-6)
        close(x.grad, golden["gx"][step], 1e-6)
        for ours, theirs in OURS.items():
            close(norm.get_parameter(ours).grad, golden[f"g_{theirs.replace('.', '__')}"][step], 1e-6)
        close(norm.running_mean, golden["norm2__bn__running_mean"][step], 1e-12)
        close(norm.running_var, golden["norm2__bn__running_var"][step], 1e-12)
    close(norm.eval()(normals("prepbn/xeval", 3, 5, DIM) * scale + shift), golden["y_eval"], 1e-12)
    for found, expected in zip(norm.affine_map(), (golden["affine_a"], golden["affine_b"]), strict=True):
        close(found, expected, 1e-12)


# ------------------------------------------------------------------------------------------------- in models


@pytest.mark.parametrize("name", ["repbn", "prepbn"])
def test_a_model_trains_and_evaluates(name):
    model = create_model("test_vit", norm=name, num_classes=3, img_size=32)
    assert sum(isinstance(m, RepBN | PRepBN) for m in model.modules()) > 2
    swapped = swap_norms(create_model("test_vit", norm="ln", num_classes=3, img_size=32), name)
    for one in (model, swapped):
        one.train()
        optimiser = torch.optim.SGD(one.parameters(), lr=0.1)
        images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", torch.bfloat16):
            loss = one(images).square().mean()
        loss.backward()
        optimiser.step()
        assert one.eval()(images).isfinite().all()


def test_a_swapped_model_begins_as_it_was():
    model = scattered(create_model("test_vit", norm="ln", num_classes=3, img_size=32)).eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(swap_norms(model, "prepbn", norm_options={"ln_eps": 1e-5})(images), model(images))
