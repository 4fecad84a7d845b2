"""What is swapped, kept and refused: exact counts for known models, reasons for the rest."""

import json
import re
from collections import Counter

import pytest
import torch
from torch import nn

import dynavit
from convert.models import Language, LinearPatchViT, small_vit, timm_model
from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.convert import SwapPlan, apply_plan, plan_swap, swap_norms
from dynavit.convert.nothing import nothing_to_swap

# model, options, size of the planning run, (swap, keep, refuse), prefix tokens of the swapped ones, heads, layouts
COUNTS = [
    ("vit_tiny_patch16_224", {"img_size": 64}, None, (24, 1, 0), {1}, {3}, {"tokens"}),
    ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "depth": 3}, None, (6, 1, 0), {5}, {6}, {"tokens"}),
    ("deit_tiny_patch16_224", {"img_size": 64}, None, (24, 1, 0), {1}, {3}, {"tokens"}),
    ("deit_tiny_distilled_patch16_224", {"img_size": 64}, None, (24, 1, 0), {2}, {3}, {"tokens"}),
    ("swin_tiny_patch4_window7_224", {"img_size": 64}, None, (24, 5, 0), {0}, {3, 6, 12, 24}, {"tokens", "map"}),
    pytest.param(  # in all that counts here like the one above
        *("swinv2_tiny_window8_256", {"img_size": 64}, None, (24, 5, 0), {0}, {3, 6, 12, 24}, {"tokens", "map"}),
        marks=pytest.mark.slow,
    ),
    ("pvt_v2_b0", {}, 64, (16, 14, 0), {0}, {1, 2, 5, 8}, {"tokens"}),
    ("convit_tiny", {"img_size": 64}, None, (24, 1, 0), {0, 1}, {4}, {"tokens"}),
    ("levit_128s", {}, 224, (0, 0, 20), set(), set(), set()),
    # not on anyone's list
    ("cait_xxs24_224", {"img_size": 64, "depth": 2}, None, (6, 1, 2), {0, 1}, {4}, {"tokens"}),
    ("vit_small_patch16_18x2_224", {"img_size": 64, "depth": 2}, None, (8, 1, 0), {1}, {6}, {"tokens"}),  # parallel branches
    ("coatnet_pico_rw_224", {}, None, (14, 1, 0), {0}, {4, 8, 16}, {"channels_first"}),
    ("test_convnext", {}, 64, (0, 13, 1), set(), set(), set()),
    ("test_mambaout", {}, 64, (0, 10, 1), set(), set(), set()),
    ("mixer_s32_224", {"img_size": 64}, None, (0, 17, 0), set(), set(), set()),
]


@pytest.mark.parametrize(
    ("name", "options", "size", "counts", "prefixes", "heads", "layouts"),
    COUNTS,
    ids=lambda v: str(sorted(v) if isinstance(v, set) else v)[:30],
)
def test_counts(name, options, size, counts, prefixes, heads, layouts):
    model = timm_model(name, **options)
    plan = plan_swap(model, "dtn", input_size=size)
    assert tuple(plan.counts().values()) == counts, str(plan)
    assert {row.num_prefix_tokens for row in plan.swapped()} == prefixes
    assert {row.heads for row in plan.swapped()} == heads
    assert {row.layout for row in plan.swapped()} == layouts
    assert plan.notes == []
    assert all(row.reason for row in plan.rows)
    assert len({row.path for row in plan.rows}) == len(plan.rows)


def reasons(plan, action="keep"):
    return Counter(row.reason.split(";")[0] for row in plan.rows if row.action == action)


def test_why_norms_of_pvt_and_swin_are_kept():
    pvt = plan_swap(timm_model("pvt_v2_b0"), "dtn", input_size=64)
    assert reasons(pvt) == {
        "part of the patch embedding: no attention has split its channels into heads yet": 1,
        "stands inside attention (keys and values at lower resolution)": 6,
        "part of downsampling: its channels are those of neighbours side by side, not of heads": 3,
        "between stages, outside the blocks": 3,
        "behind the last block: it prepares the class token or the average for the classifier": 1,
    }
    sites = Counter(
        (row.site, row.layout) for row in plan_swap(timm_model("swin_tiny_patch4_window7_224", img_size=64)).swapped()
    )
    assert sites == {("attn", "map"): 12, ("mlp", "tokens"): 12}  # timm flattens in front of the MLP


def test_torchvision():
    ensure_torchvision()
    import torchvision

    vit = torchvision.models.vit_b_16(image_size=64, num_classes=4)
    for block in list(vit.encoder.layers._modules)[3:]:
        del vit.encoder.layers._modules[block]
    plan = plan_swap(vit, "dtn")
    assert tuple(plan.counts().values()) == (6, 1, 0)
    assert {(row.heads, row.num_prefix_tokens, row.grid) for row in plan.swapped()} == {(12, 1, (4, 4))}
    plan = plan_swap(torchvision.models.swin_t(), "dtn", input_size=(64, 96))
    assert tuple(plan.counts().values()) == (24, 5, 0)
    assert {row.layout for row in plan.swapped()} == {"map"}
    assert plan.swapped()[0].grid == (16, 24)
    assert {row.heads for row in plan.swapped()} == {3, 6, 12, 24}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder(batch_first, norm_first):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 3, nn.LayerNorm(16), enable_nested_tensor=False)
    plan = plan_swap(model, "dtn")
    assert tuple(plan.counts().values()) == (6, 1, 0)
    assert {(row.heads, row.ndim, row.site) for row in plan.swapped()} == {(4, 1, "attn"), (4, 1, "mlp")}
    assert {row.layout for row in plan.swapped()} == {"tokens" if batch_first else "sequence_first"}
    assert tuple(plan_swap(model, "dtn_released").counts().values()) == (0, 0, 7)


def test_norms_inside_attention_and_mlp_that_stand_in_front():
    plan = plan_swap(LinearPatchViT(), "dtn")
    assert tuple(plan.counts().values()) == (4, 1, 0), str(plan)
    assert plan.patch == (8, 8)
    assert [(row.path, row.site, row.heads) for row in plan.swapped()][:2] == [
        ("layers.0.0.norm", "attn", 4),
        ("layers.0.1.net.0", "mlp", 4),
    ]
    model = swap_norms(LinearPatchViT(), "dtn", start="identity")
    x = torch.randn(2, 3, 16, 40)
    model(x)
    assert model.layers[0][0].norm._forward_pre_hooks  # the grid came from the size of the image


def test_tokens_in_another_order_are_refused():
    """As many tokens as a grid has cells, but they do not lie on it: nothing but a measurement tells."""
    plan = plan_swap(LinearPatchViT(shuffled=True), "dtn")
    assert tuple(plan.counts().values()) == (0, 0, 5)
    assert all("do not lie row by row on the 4x4 grid" in row.reason for row in plan.rows)
    assert tuple(plan_swap(LinearPatchViT(shuffled=True), "in").counts().values()) == (4, 1, 0)  # order does not matter to it


@pytest.mark.parametrize("name", ["hiera_tiny_224", "mobilevit_xxs"])
def test_reordered_and_folded_tokens_are_refused(name):
    """Hiera reorders tokens by units, MobileViT interleaves them."""
    model = timm_model(name)
    plan = plan_swap(model, "dtn")
    assert plan.counts()["swap"] == 0, str(plan)
    assert plan.counts()["refuse"] > 0


def test_pooled_vectors_are_refused():
    model = small_vit(global_pool="avg")
    (row,) = [row for row in plan_swap(model).rows if row.path == "fc_norm"]
    assert row.action == "refuse" and "single vectors" in row.reason


def test_queries_and_keys():
    model = small_vit(qk_norm=True)
    for norm, action in (("dtn", "refuse"), ("rms", "keep")):
        plan = plan_swap(model, norm)
        assert {row.action for row in plan.rows if row.path.endswith(("q_norm", "k_norm"))} == {action}
        assert plan.counts()["swap"] == 4


def test_heads_that_do_not_divide_the_channels():
    block = nn.Module()
    block.norm1, block.attn = nn.LayerNorm(10), nn.MultiheadAttention(12, 3)
    rows = {row.path: row for row in plan_swap(nn.ModuleDict({"block": block}), norm_options={"ndim": 1}).rows}
    row = rows["block.norm1"]
    assert row.action == "refuse" and "10 channels cannot be split into the 3 heads" in row.reason
    plan = plan_swap(nn.ModuleDict({"block": block}), norm_options={"ndim": 1}, where="block.norm1")
    assert plan.rows[0].action == "swap" and plan.rows[0].heads == 1


def test_no_input_size_is_said():
    plan = plan_swap(nn.Sequential(nn.LayerNorm(4)), "ln")
    assert "input size unknown" in plan.notes[0]
    assert plan_swap(nn.Linear(2, 2)).notes == ["the model has no norm of the LayerNorm family"]


def test_not_knowing_image_or_sequence_is_a_refusal():
    blocks = nn.ModuleDict({"0": nn.TransformerEncoderLayer(16, 4, 32)})  # no input is known for a ModuleDict
    plan = plan_swap(blocks, "dtn")
    assert tuple(plan.counts().values()) == (0, 0, 2)
    assert "image or a sequence" in plan.rows[0].reason
    assert tuple(plan_swap(blocks, "dtn", norm_options={"ndim": 1}).counts().values()) == (2, 0, 0)


def test_a_given_size_that_does_not_run_is_an_error():
    with pytest.raises(ValueError, match="could not be run on input of shape"):
        plan_swap(small_vit(), input_size=65)


def test_norms_with_more_inside_are_refused():
    class LayerNormAct(nn.LayerNorm):
        def __init__(self, dim):
            super().__init__(dim)
            self.act = nn.GELU()

        def forward(self, x):
            return self.act(super().forward(x))

    model = small_vit()
    model.blocks[0].norm1 = LayerNormAct(192)

    class Shifted(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) + 1

    model.blocks[0].norm2 = Shifted(192)
    model.blocks[1].norm1 = nn.LayerNorm((17, 192))
    rows = {row.path: row for row in plan_swap(model).rows}
    assert "GELU" in rows["blocks.0.norm1"].reason
    assert "not that of LayerNorm" in rows["blocks.0.norm2"].reason
    assert "over 2 axes" in rows["blocks.1.norm1"].reason
    assert [row.action for row in rows.values()] == ["refuse", "refuse", "refuse", "swap", "keep"]


def test_planning_changes_nothing():
    model = small_vit().train()
    model.blocks[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    plan_swap(model)
    assert torch.equal(rng, torch.get_rng_state())
    assert model.training and not model.blocks[0].training and model.blocks[1].training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_on_the_meta_device():
    ensure_torchvision()
    import timm

    with torch.device("meta"):
        model = timm.create_model("vit_tiny_patch16_224", depth=2)
    plan = plan_swap(model)
    assert tuple(plan.counts().values()) == (4, 1, 0)
    assert swap_norms(model, "dtn").blocks[0].norm1.position.is_meta


def test_json_both_ways_rebuilds_the_same_model():
    model = swap_norms(timm_model("convit_tiny", img_size=32), "dtn", where={"depth": (0, 10)}, start="fresh")
    plan = model.swap_plan
    again = SwapPlan.from_json(plan.to_json())
    assert again == plan
    assert SwapPlan.from_json(json.loads(plan.to_json())) == plan
    assert plan.to_dict()["rows"][0]["path"] == plan.rows[0].path
    rebuilt = apply_plan(timm_model("convit_tiny", img_size=32), again)
    rebuilt.load_state_dict(model.state_dict())
    x = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(rebuilt(x), model(x))
    with pytest.raises(ValueError, match="made for another model"):
        apply_plan(small_vit(), again)
    with pytest.raises(ValueError, match="version 7"):
        SwapPlan.from_json('{"version": 7}')


def test_a_plan_prints_as_text():
    text = str(plan_swap(small_vit()))
    assert text.splitlines()[0] == "VisionTransformer -> dtn: 4 swap, 1 keep, 0 refuse"


# ---- where ----


def swapped_paths(where, **options):
    return [row.path for row in plan_swap(small_vit(), where=where, **options).swapped()]


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("blocks.*.norm1", ["blocks.0.norm1", "blocks.1.norm1"]),
        (["blocks.0.*", "norm"], ["blocks.0.norm1", "blocks.0.norm2", "norm"]),
        (range(1, 2), ["blocks.1.norm1", "blocks.1.norm2"]),
        ({"depth": (0, 0)}, ["blocks.0.norm1", "blocks.0.norm2"]),
        ({"depth": 1, "site": "mlp"}, ["blocks.1.norm2"]),
        ({"depth": lambda index: index % 2 == 1, "site": ["attn", "mlp"]}, ["blocks.1.norm1", "blocks.1.norm2"]),
        ({"site": "attn", "pattern": "blocks.1*"}, ["blocks.1.norm1"]),
        ({"site": "other"}, ["norm"]),
        (lambda row: row.path.endswith("norm"), ["norm"]),
    ],
)
def test_where(where, paths):
    assert swapped_paths(where) == paths


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("blocks.*.norm7", "unknown norm 'blocks.\\*.norm7'. Did you mean"),
        ({"sight": "attn"}, "Did you mean 'site'"),
        ({"site": "attention"}, "unknown site"),
        (3.5, "where= is a name pattern"),
    ],
)
def test_where_that_makes_no_sense(where, message):
    with pytest.raises(ValueError, match=message):
        swapped_paths(where)


def test_nothing_to_swap_is_an_error_with_reasons():
    with pytest.raises(ValueError, match="no norm to swap.*BatchNorm behind a linear layer"):
        swap_norms(timm_model("levit_128s"), "dtn")
    with pytest.raises(ValueError, match="Did you mean 'dyt' or 'dtn'"):
        dynavit.plan_swap(small_vit(), "dnt")


# ---- causal ----


OF_ONE_TOKEN = ("ln", "rms", "scale", "dyt", "derf")
MIXING = (
    *("dtn", "dtn_released", "in", "gn", "sn", "bn", "power"),
    *("un", "repbn", "prepbn", "zscore", "minmax", "ldfn"),
)


@pytest.mark.parametrize("norm", MIXING)
def test_norms_that_mix_tokens_are_refused_in_causal_models(norm):
    options = {"norm_options": {"ndim": 1}} if norm == "dtn" else {}
    plan = plan_swap(Language(), norm, **options)
    assert [row.action for row in plan.rows[:4]] == ["refuse"] * 4  # the blocks'
    assert all("mixes tokens" in row.reason for row in plan.rows[:4])
    plan = plan_swap(small_vit(), norm, causal=True)
    assert all("causal=True" in row.reason for row in plan.rows)
    with pytest.raises(ValueError, match="a token would see later ones"):
        swap_norms(small_vit(), norm, causal=True)


@pytest.mark.parametrize("norm", OF_ONE_TOKEN)
def test_norms_of_single_tokens_are_fine_there(norm):
    assert plan_swap(Language(), norm).counts()["swap"] == 4
    assert plan_swap(small_vit(), norm, causal=True).counts()["swap"] == 4


def test_every_registered_norm_was_considered():
    assert set(dynavit.list_norms()) == {*OF_ONE_TOKEN, *MIXING}


def test_decoders():
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 1)
    assert tuple(plan_swap(decoder, "dtn", norm_options={"ndim": 1}).counts().values()) == (0, 0, 3)
    model = small_vit()
    model.blocks[1].attn.is_causal = True
    rows = {row.path: row.action for row in plan_swap(model).rows}
    assert [rows[f"blocks.{i}.norm1"] for i in range(2)] == ["swap", "refuse"]


def test_models_without_attention_are_told_the_call_that_works():
    model = timm_model("test_convnext")
    with pytest.raises(ValueError, match="no attention found in the model, so no heads") as refused:
        swap_norms(model, "dtn")
    call = re.search(r"dynavit\.(swap_norms\(.*?\}\)) swaps 9 all the same", str(refused.value)).group(1)
    swapped = eval(call, {"swap_norms": swap_norms, "model": model})
    assert swapped.swap_plan.counts()["swap"] == 9 and {row.heads for row in swapped.swap_plan.swapped()} == {8}
    same = swap_norms(model, "dtn", where="stages.*.blocks.*.norm", start="identity", norm_options={"heads": 4})
    x = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(same(x), model(x), rtol=1e-5, atol=1e-5)
    assert "all the same" in (said := nothing_to_swap(plan_swap(model, "dyt"))) and "heads" not in said.partition(" swaps ")[0]


def test_torchvision_convnext_by_name():
    ensure_torchvision()
    import torchvision
    from torchvision.models.convnext import CNBlockConfig

    model = torchvision.models.ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 2)], num_classes=3).eval()
    same = swap_norms(model, "dtn", where="features.*.block.*", start="identity", input_size=64)
    x = torch.randn(2, 3, 64, 96)
    assert same.swap_plan.counts()["swap"] == 3
    torch.testing.assert_close(same(x), model(x), rtol=1e-5, atol=1e-5)
