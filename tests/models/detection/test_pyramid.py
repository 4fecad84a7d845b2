"""Pyramids: any size, any norm; the norm of an image, or all of its features, independent of neighbours in a padded batch."""

import pytest
import torch

import dynavit
from dynavit.models.detection.fpn import FPN
from dynavit.models.detection.padding import padded_alone, real_cells
from dynavit.models.detection.pyramid import build_pyramid, resized_positions

SMALL_PVT = {"embed_dims": (8, 16, 20, 32), "depths": (1, 1, 1, 1), "heads": (1, 2, 5, 8), "mlp_ratios": (2, 2, 2, 2)}
SMALL_VIT = {"embed_dim": 16, "depth": 2, "heads": 4, "norm_blocks": 2}
OWN = [("pvt_nano", SMALL_PVT), ("vit_tiny", SMALL_VIT)]


def pyramid(backbone="pvt_nano", norm="dtn", padding=None, options=None, **more):
    torch.manual_seed(0)
    built = build_pyramid(
        backbone, norm=norm, padding=padding, options={**dict(OWN).get(backbone, {}), **(options or {})}, **more
    )
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return built.double().eval()


def image(height, width, seed=0):
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def padded(one, height, width):
    return torch.nn.functional.pad(one, (0, width - one.shape[3], 0, height - one.shape[2]))


def alone_and_in_batches(built, one, neighbours):
    """The maps of an image padded alone, and in a batch with each neighbour; cells outside the image are left out."""
    size = torch.tensor([one.shape[2:]])
    alone = built(padded(one, *padded_alone(size)[0].tolist()), size)
    for other in neighbours:
        sizes = torch.cat([size, torch.tensor([other.shape[2:]])])
        height, width = padded_alone(sizes).amax(0).tolist()
        together = built(torch.cat([padded(one, height, width), padded(other, height, width)]), sizes)
        for stride, a, b in zip(built.strides, alone, together, strict=True):
            rows, cols = (-(-side // stride) for side in one.shape[2:])
            yield a[0, :, :rows, :cols], b[0, :, :rows, :cols]


# ---- sizes and norms


@pytest.mark.parametrize("size", [(224, 224), (96, 160), (160, 608), (64, 64)], ids=str)
@pytest.mark.parametrize(("backbone", "options"), OWN)
def test_any_size_gives_four_maps(backbone, options, size):
    built = pyramid(backbone).float()
    maps = built(torch.randn(1, 3, *size))
    assert [tuple(x.shape[2:]) for x in maps] == [(size[0] // s, size[1] // s) for s in (4, 8, 16, 32)]
    assert tuple(x.shape[1] for x in maps) == built.channels
    transposed = built(torch.randn(1, 3, *size[::-1]))
    assert [tuple(x.shape[2:]) for x in transposed] == [(size[1] // s, size[0] // s) for s in (4, 8, 16, 32)]


def test_a_small_odd_image_is_padded_first():
    one = image(33, 47)
    with pytest.raises(ValueError, match="multiples of 32"):
        pyramid()(one)
    maps = pyramid()(padded(one, 64, 64), torch.tensor([[33, 47]]))
    assert [x.shape[-1] for x in maps] == [16, 8, 4, 2] and all(x.isfinite().all() for x in maps)


@pytest.mark.parametrize("norm", dynavit.list_norms())
def test_every_norm_works_masked_and_every_parameter_is_trained(norm):
    built = pyramid(norm=norm, levels=(1, 2, 3)).train()
    batch = torch.cat([padded(image(64, 64), 64, 96), image(64, 96)])
    maps = built(batch, torch.tensor([[64, 64], [64, 96]]))
    assert len(maps) == 3
    sum(x.square().sum() for x in maps).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in built.parameters())


@pytest.mark.parametrize(
    ("backbone", "options"),
    [
        ("pvt_v2_b0", {"depths": (1, 1, 1, 1)}),
        ("swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1), "embed_dim": 24, "num_heads": (1, 2, 4, 8)}),
    ],
)
def test_pyramids_of_timm(backbone, options):
    torch.manual_seed(0)
    built = build_pyramid(backbone, norm="dtn", levels=(1, 2, 3), options=options)
    assert built.padding == "none"
    maps = built(torch.randn(1, 3, 64, 96), torch.tensor([[60, 90]]))
    assert [tuple(x.shape[1:]) for x in maps] == [
        (channels, 64 // stride, 96 // stride) for channels, stride in zip(built.channels, (8, 16, 32), strict=True)
    ]
    sum(x.square().mean() for x in maps).backward()
    assert all(parameter.grad is not None for parameter in built.parameters())
    with pytest.raises(ValueError, match="takes no mask: padding='norm' cannot be kept"):
        build_pyramid(backbone, padding="norm")


@pytest.mark.parametrize(
    ("backbone", "options", "message"),
    [
        ("resnet18", {}, "resnet18"),
        ("test_t2t", {}, "no pyramid"),
        ("vit_tiny", {"patch_size": 8}, "patch_size is 16"),
        ("pvt_nano", {"patch_size": 2, "img_size": 64}, "patch_size is 4"),
    ],
)
def test_what_is_no_pyramid_says_so(backbone, options, message):
    with pytest.raises(ValueError, match=message):
        build_pyramid(backbone, options=options)
    with pytest.raises(ValueError, match="unknown padding 'nrom'"):
        build_pyramid("pvt_nano", padding="nrom")


# ---- padding


@pytest.mark.parametrize("grid", [(25, 42), (7, 28), (28, 7)], ids=str)
@pytest.mark.parametrize("offset", [1.0, 6.0])
def test_the_norm_of_an_image_does_not_depend_on_padding(grid, offset):
    """DTN on the real tokens of a padded batch is DTN of the image alone, for kernels that look far to one side too."""
    norm = dynavit.create_norm("dtn", 8, heads=4).double()
    with torch.no_grad():
        norm.position.copy_(torch.tensor([[-1.0, 2 * dx * offset, 2 * dy * offset] for dx in (0, 1) for dy in (-1, 1)]))
    rows, cols = grid[0] - 3, grid[1] * 2 // 3
    x = torch.randn(1, *grid, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.zeros(1, *grid, dtype=torch.bool)
    mask[:, :rows, :cols] = True
    x = torch.where(mask[..., None], x, float("nan")).requires_grad_()  # garbage in padding reaches nothing
    alone = x.detach()[:, :rows, :cols].clone().requires_grad_()
    found, expected = norm(x, mask=mask), norm(alone)
    torch.testing.assert_close(found[:, :rows, :cols], expected, rtol=1e-10, atol=1e-10)
    assert not found[~mask].any()
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad[:, :rows, :cols], alone.grad, rtol=1e-8, atol=1e-8)
    assert not x.grad[~mask].any()


@pytest.mark.parametrize("norm", ["ln", "dtn", "in"])
@pytest.mark.parametrize(("backbone", "options"), OWN)
def test_with_padding_all_an_image_has_the_same_features_in_every_batch(backbone, options, norm):
    built = pyramid(backbone, norm, "all")
    for one in (image(64, 64), image(60, 70)):  # multiples of 32 or not
        for a, b in alone_and_in_batches(built, one, [image(96, 128, 1), image(128, 64, 2)]):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("padding", ["none", "norm"])
def test_with_less_they_differ(padding):
    built = pyramid(padding=padding)
    found = alone_and_in_batches(built, image(64, 64), [image(96, 128, 1)])
    assert all((a - b).abs().max() > 1e-4 for a, b in found)


def test_padding_norm_masks_norms_and_nothing_else():
    """Norms see what the image alone would show them; attention still sees padding."""
    seen = {}
    for padding in ("none", "norm"):
        built = pyramid(padding=padding)
        masks = seen[padding] = []
        for module in built.modules():
            if isinstance(module, dynavit.Norm):
                module.register_forward_pre_hook(
                    lambda _, given, named, masks=masks: masks.append((named.get("mask"), *given[2:])[-1]), with_kwargs=True
                )
        built(padded(image(64, 64), 64, 96), torch.tensor([[64, 64]]))
    assert all(mask is None for mask in seen["none"])
    assert all(mask is not None and mask.float().mean() == pytest.approx(2 / 3, abs=0.02) for mask in seen["norm"])
    assert not any(module.hides_padding for module in built.modules() if hasattr(module, "hides_padding"))


def test_garbage_in_padding_changes_nothing_with_padding_all():
    built, sizes = pyramid(padding="all"), torch.tensor([[64, 64], [64, 96]])
    batch = torch.cat([padded(image(64, 64), 64, 96), image(64, 96, 1)])
    clean = built(batch, sizes)
    batch[0, :, :, 64:] = 1e3
    for stride, a, b in zip(built.strides, clean, built(batch, sizes), strict=True):
        inside = real_cells(sizes, stride, tuple(a.shape[2:]))[:, None].expand_as(a)
        torch.testing.assert_close(a[inside], b[inside], rtol=1e-10, atol=1e-10)


def test_real_cells_reach_into_the_image():
    found = real_cells(torch.tensor([[33, 47], [64, 64]]), 16, (4, 4))
    assert found[0].sum(0).tolist() == [3, 3, 3, 0] and found[0].sum(1).tolist() == [3, 3, 3, 0] and found[1].all()
    assert padded_alone(torch.tensor([[33, 64]])).tolist() == [[64, 64]]


def test_positions_are_resized_to_each_images_own_grid():
    learned = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(resized_positions(learned, (2, 3), (2, 3)), learned)
    # The shortcut of the release compares token counts: a 3 x 2 grid has as many tokens and is another one.
    assert not torch.equal(resized_positions(learned, (2, 3), (3, 2)), learned)
    both = resized_positions(learned, (2, 3), (4, 6), torch.tensor([[2, 3], [4, 6]])).unflatten(1, (4, 6))
    assert torch.equal(both[0, :2, :3].flatten(0, 1), learned[0]) and not both[0, 2:].any() and not both[0, :, 3:].any()
    assert torch.allclose(both[1].flatten(0, 1), resized_positions(learned, (2, 3), (4, 6))[0])


# ---- FPN


def fpn_by_hand(fpn, maps):
    conv = torch.nn.functional.conv2d
    merged = [conv(x, lateral.weight, lateral.bias) for x, lateral in zip(maps, fpn.laterals, strict=True)]
    for at in reversed(range(len(merged) - 1)):
        for i in range(merged[at].shape[2]):
            for j in range(merged[at].shape[3]):
                rows, cols = merged[at + 1].shape[2:]
                source = merged[at + 1][:, :, i * rows // merged[at].shape[2], j * cols // merged[at].shape[3]]
                merged[at][:, :, i, j] += source
    return [conv(x, output.weight, output.bias, padding=1) for x, output in zip(merged, fpn.outputs, strict=True)]


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[(8, 12), (4, 6), (2, 3)], [(9, 13), (5, 7), (3, 4)]], ids=str)
def test_fpn_for_even_and_odd_maps(sizes):
    torch.manual_seed(0)
    maps = [torch.randn(2, channels, *size) for channels, size in zip((3, 5, 7), sizes, strict=True)]
    retina, mask = FPN((3, 5, 7), 4, "convolved"), FPN((3, 5, 7), 4, "subsampled")
    found = retina(maps)
    for a, b in zip(found, fpn_by_hand(retina, maps), strict=False):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    first, second = retina.coarser
    torch.testing.assert_close(found[3], first(maps[-1]))  # of the backbone's last map
    torch.testing.assert_close(found[4], second(found[3]))  # without a ReLU
    rows, cols = sizes[-1]
    assert found[3].shape[2:] == (-(-rows // 2), -(-cols // 2))
    outputs = mask(maps)
    assert len(outputs) == 4 and torch.equal(outputs[3], outputs[2][:, :, ::2, ::2])


@pytest.mark.parametrize("rows", [1, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (2, 3))])
def test_fpn_in_half_precision_on_maps_of_one_column(rows):
    """Where oneDNN pads, the gradient of weights that see padding alone is whatever was in memory (torch 2.13, AVX-512)."""
    torch.manual_seed(0)
    fpn, x = FPN((16,), 16, "convolved"), torch.randn(2, 16, rows, 1)
    for _ in range(20):
        used = [torch.full((2**size,), 1e30) for size in range(4, 17) for _ in range(6)]
        del used  # memory that is not fresh
        fpn.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            found = fpn([x])
        sum(level.float().sum() for level in found).backward()
        for convolve in fpn.coarser:
            assert not convolve.weight.grad[..., [0, 2]].any()  # left and right of the only column is nothing
            assert convolve.weight.grad[..., 1].isfinite().all() and convolve.weight.grad[..., 1].any()
