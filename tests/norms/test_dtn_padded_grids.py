"""DTN of images in padded batches: each as if it were alone, whatever stands in the padding and wherever heads look."""

import math

import pytest
import torch
from torch import Tensor

from dynavit.norms.dtn import extents
from dynavit.norms.dtn.math import Layout
from dynavit.norms.dtn.native import build, kernel
from norms.dtn_cases import assert_close, choose, cotangent, error, expect, finite, layer, run, tokens

GRID = (9, 14)
SIZES = [(9, 14), (5, 14), (9, 8), (6, 3), (1, 1), (1, 9), (7, 1)]  # real rows and columns of each image
NEAR, ALONE = 1e-11, 1e-10
LOOKING = {
    "as started": None,
    "six further": (-1.0, 12.0, 12.0),
    "six back": (-1.0, -12.0, -12.0),
    "outwards": (0.05, 0.1, 0.0),
}


def corners(grid: tuple[int, int], sizes: list[tuple[int, int]], prefix: int = 0) -> Tensor:
    """(b, prefix + t), True in the top-left corner."""
    valid = torch.zeros(len(sizes), *grid, dtype=torch.bool)
    for image, (rows, cols) in zip(valid, sizes, strict=True):
        image[:rows, :cols] = True
    return torch.nn.functional.pad(valid.flatten(1), (prefix, 0), value=True)


def padded_layer(way: dict, looking: tuple[float, float, float] | None = None, **options):
    norm = layer(20, 4, **options, **way)
    if looking is not None:
        with torch.no_grad():
            norm.position += torch.tensor(looking, dtype=norm.position.dtype) - norm.position.mean(0)
    return norm


@pytest.mark.parametrize("looking", LOOKING)
def test_every_image_is_as_if_it_were_alone(way, looking):
    """Outputs, gradients of the tokens, and gradients of the parameters, which add up over the images."""
    norm, x = padded_layer(way, LOOKING[looking]), tokens(len(SIZES), math.prod(GRID), 20)
    found = run(norm, x, grid=GRID, mask=corners(GRID, SIZES))
    assert finite(found)
    sums = {key: torch.zeros_like(value) for key, value in found.items() if key not in "xy"}
    for k, (rows, cols) in enumerate(SIZES):
        image = x[k].unflatten(0, GRID)[:rows, :cols].flatten(0, 1)[None].clone().requires_grad_()
        inside = cotangent(x)[k].unflatten(0, GRID)[:rows, :cols].flatten(0, 1)[None]
        y = norm(image, grid=(rows, cols))
        parts = torch.autograd.grad(y, [image, *norm.parameters()], inside)
        for key, alone in (("y", y.detach()[0]), ("x", parts[0][0])):
            corner = found[key][k].unflatten(0, GRID)[:rows, :cols].flatten(0, 1)
            assert error(corner, alone) <= ALONE, (key, rows, cols)
        for (key, _), part in zip(norm.named_parameters(), parts[1:], strict=True):
            sums[key] += part
    assert_close({key: found[key] for key in sums}, sums, ALONE)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("options", [{}, {"radius": 2}, {"average": "window", "radius": 1}, {"affine": False}])
def test_equals_the_equations(way, prefix, options):
    norm, valid = padded_layer(way, num_prefix_tokens=prefix, **options), corners(GRID, SIZES, prefix)
    x = tokens(len(SIZES), prefix + math.prod(GRID), 20)
    radius = options.get("radius") if norm.average == "learned" else None
    assert_close(run(norm, x, grid=GRID, mask=valid), expect(norm, x, GRID, valid, radius), NEAR)


@pytest.mark.parametrize("garbage", [1e30, float("nan"), float("inf")])
def test_garbage_in_the_padding_changes_nothing(way, garbage):
    norm, valid = padded_layer(way, num_prefix_tokens=1), corners(GRID, SIZES, 1)
    x = tokens(len(SIZES), 1 + math.prod(GRID), 20)
    clean, found = (run(norm, torch.where(valid[..., None], x, value), grid=GRID, mask=valid) for value in (0.0, garbage))
    assert_close(found, clean, 0.0)
    assert not found["y"][~valid].any() and not found["x"][~valid].any()


@pytest.mark.parametrize("dim_heads", [(64, 1), (64, 4), (27, 3)])
def test_single_precision_is_near(way, dim_heads):
    """Six tokens into the padding, where the ratio P(m x) / P(m) would divide by e^-72."""
    norm = layer(*dim_heads, dtype=torch.float32, **way)
    with torch.no_grad():
        norm.position.copy_(torch.tensor([-1.0, 12.0, 12.0]))
    x, valid = tokens(3, 13 * 19, dim_heads[0], dtype=torch.float32), corners((13, 19), [(13, 19), (11, 10), (4, 17)])
    assert_close(run(norm, x, grid=(13, 19), mask=valid), expect(norm, x, (13, 19), valid), 3e-5)


def test_images_of_nothing_but_padding(way):
    """Output 0, gradient 0, and the others do not notice."""
    norm, sizes = padded_layer(way), [(0, 0), (5, 6), (0, 0)]
    x, valid = tokens(3, math.prod(GRID), 20), corners(GRID, sizes)
    found = run(norm, x, grid=GRID, mask=valid)
    assert finite(found) and not found["y"][::2].any() and not found["x"][::2].any()
    assert error(found["y"][1:2], expect(norm, x[1:2], GRID, valid[1:2])["y"]) <= NEAR


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_give_the_same_numbers(threads):
    norm, x, valid = padded_layer({}), tokens(len(SIZES), math.prod(GRID), 20), corners(GRID, SIZES)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = run(norm, x, grid=GRID, mask=valid)
    finally:
        torch.set_num_threads(before)
    assert_close(found, expect(norm, x, GRID, valid), NEAR)


def test_rectangles_go_to_the_c_kernel_and_other_masks_do_not(monkeypatch):
    """Whatever the form, the same equations; only rectangles are in C."""
    choose("native", monkeypatch)
    calls = []
    original = kernel._run
    monkeypatch.setattr(kernel, "_run", lambda entry, *rest: calls.append(entry.__name__) or original(entry, *rest))
    norm, x = padded_layer({}), tokens(2, math.prod(GRID), 20)
    rectangles, holes = corners(GRID, [(4, 9), (9, 14)]), corners(GRID, [(4, 9), (9, 14)])
    holes[0, 1] = False
    for valid, entries in ((rectangles, ["dtn_forward_f64", "dtn_backward_f64"]), (holes, [])):
        calls.clear()
        assert_close(run(norm, x, grid=GRID, mask=valid), expect(norm, x, GRID, valid), NEAR)
        assert calls == entries


def test_a_large_rectangular_grid():
    """Stage 1 of detection: 200x336, where P would have 4.5e9 entries."""
    norm, sizes = layer(6, 2), [(200, 336), (150, 333)]
    x = tokens(2, 200 * 336, 6)
    y = norm(x, grid=(200, 336), mask=corners((200, 336), sizes)).detach()
    alone = norm(x[1].unflatten(0, (200, 336))[:150, :333].flatten(0, 1)[None], grid=(150, 333)).detach()[0]
    assert error(y[1].unflatten(0, (200, 336))[:150, :333].flatten(0, 1), alone) <= NEAR
    assert error(y[:1], norm(x[:1], grid=(200, 336)).detach()) <= NEAR


FORMS = {  # of a 3x4 grid behind one prefix token: its mask, and the rows and columns that are real
    "all": ("1 1111 1111 1111", (3, 4)),
    "nothing": ("1 0000 0000 0000", (0, 0)),
    "a corner": ("1 1100 1100 0000", (2, 2)),
    "one token": ("1 1000 0000 0000", (1, 1)),
    "no prefix": ("0 1111 1111 1111", None),
    "a hole": ("1 1111 1011 1111", None),
    "another corner": ("1 0011 0011 0000", None),
    "a staircase": ("1 1110 1100 1000", None),
    "a widening": ("1 1100 1110 0000", None),
    "a gap between rows": ("1 1100 0000 1100", None),
    "a row that starts again": ("1 1101 1101 0000", None),
    "a later start": ("1 0000 1100 1100", None),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_masks(form):
    assert build.native_kernel_available()
    bits, size = FORMS[form]
    mask = torch.tensor([[bit == "1" for bit in bits.replace(" ", "")]]).repeat(2, 1)
    mask[0] = True
    found = extents.top_left(mask, Layout((3, 4), prefix=1))
    assert found is None if size is None else found.tolist() == [[3, 4], list(size)]


def test_masks_that_do_not_lie_in_one_piece_of_memory():
    mask = corners(GRID, SIZES)
    apart = mask.t().contiguous().t()
    assert not apart.is_contiguous()
    assert torch.equal(extents.top_left(apart, Layout(GRID)), torch.tensor(SIZES))
