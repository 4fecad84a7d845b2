"""A norm in a file of the user's own works wherever a norm is named."""

import copy

import pytest
import torch
from torch import nn

import dynavit
from convert.models import Language, small_vit, timm_model
from dynavit.bench import norms as norm_bench
from dynavit.bench.norms import Shape, run_norm_bench
from dynavit.cli.list import norm_rows
from dynavit.convert import SwapPlan, apply_plan, plan_swap, swap_norms
from dynavit.norms.factory import NORMS, folds, register_norm
from dynavit.norms.seat import Seat, seat_norm
from norms import test_contract as contract
from norms.guests import EXAMPLE, FIXED, ROWS, SILENT, a_guest


@pytest.fixture
def mine():
    with a_guest(EXAMPLE):
        yield


@pytest.fixture
def silent(tmp_path):
    with a_guest(tmp_path / "silent.py", SILENT):
        yield


@pytest.fixture
def fixed(tmp_path):
    with a_guest(tmp_path / "fixed.py", FIXED):
        yield


@pytest.fixture
def rows(tmp_path):
    with a_guest(tmp_path / "rows.py", ROWS):
        yield


def norms_of(model):
    return [module for module in model.modules() if isinstance(module, dynavit.Norm)]


# ---- The example


def test_the_example_is_twenty_lines():
    assert sum(bool(line.strip()) for line in EXAMPLE.read_text().splitlines()) <= 20


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        (contract.test_keeps_shape_and_trains_every_parameter, ()),
        (contract.test_grid_input_equals_token_input, (True,)),
        (contract.test_affine_false_has_no_gain_and_no_bias, ()),
        (contract.test_garbage_in_padding_reaches_nothing, (float("nan"), True)),
        (contract.test_mask_of_real_tokens_only_changes_nothing, ()),
        (contract.test_gradients_are_the_derivatives, (True,)),
        (contract.test_bfloat16_tokens_have_float32_statistics, (False,)),
        (contract.test_bfloat16_module, ()),
        (contract.test_reads_no_values_on_the_host, ()),
        (contract.test_meta_module_comes_alive_through_reset_parameters, ()),
        (contract.test_copies_and_state_dicts, ()),
        (contract.test_exports, ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_example_keeps_the_contract(mine, check, arguments):
    check("mine", *arguments)


def test_the_example_lies_between_layer_norm_and_rms_norm(mine):
    x = torch.randn(2, 5, 8, dtype=torch.float64) + 1
    norm = dynavit.create_norm("mine", 8, dtype=torch.float64)
    for share, other in ((1.0, nn.functional.layer_norm(x, (8,))), (0.0, nn.functional.rms_norm(x, (8,), eps=1e-5))):
        norm.start_at(share)
        torch.testing.assert_close(norm(x), other)


def test_the_example_replaces_trained_layer_norms(mine):
    model, x = small_vit().double(), torch.randn(2, 3, 64, 64, dtype=torch.float64)
    same = swap_norms(model, "mine", start="identity")
    torch.testing.assert_close(same(x), model(x))
    same(x).square().sum().backward()
    assert all((norm.share == 1).all() and norm.share.grad.all() for norm in norms_of(same))
    near = swap_norms(model, "mine")
    assert near.swap_plan.start == "near" and 0 < near.swap_plan.deviation < 0.1


# ---- Anywhere by name


@pytest.mark.parametrize("norm", ["mine", pytest.param("silent", marks=pytest.mark.slow)])
def test_created_listed_and_measured(norm, mine, silent, monkeypatch):
    assert norm in dynavit.list_norms() and not folds(norm)
    (row,) = [row for row in norm_rows() if row.name == norm]
    assert row.description.startswith("Each channel learns" if norm == "mine" else "")
    assert row.options == {}
    monkeypatch.setattr(norm_bench, "SHAPES", {"B": Shape(2, (3, 3), 8, 2), "D": Shape(2, (9,), 8, 2)})
    bench = run_norm_bench([norm], ["B", "D"], repeats=1, sweep=False)
    assert [(row.shape, row.norm) for row in bench.rows if row.norm == norm] == [("B", norm), ("D", norm)]


@pytest.mark.parametrize("norm", ["mine", "silent"])
@pytest.mark.parametrize("name", ["vit_micro", "test_sequence", "test_pvt", "test_t2t"])
def test_in_our_models(name, norm, mine, silent):
    model = dynavit.create_model(name, norm=norm)
    kinds = {type(module).__name__.lower() for module in norms_of(model)}
    assert kinds == ({norm} if name == "test_sequence" else {norm, "layernorm"})  # at the ends


def test_weights_of_a_norm_without_a_constructor_are_set(silent):
    norm = dynavit.create_norm("silent", 4)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(norm(x), x / (x.abs().amax(1, keepdim=True) + 1e-5))
    real = torch.tensor([[True, True, False], [True, True, True]])
    padded = torch.where(real[..., None], x, 1e6)
    torch.testing.assert_close(norm(padded, mask=real)[0, :2], norm(x[:1, :2])[0])


# ---- Swapped into others' models


def inputs_and_outputs(model, image):
    """What went into and came out of the first norm."""
    seen = []
    hook = norms_of(model)[0].register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    model(image)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("norm", [pytest.param("silent", marks=pytest.mark.slow), "rows"])
def test_rows_of_a_plan(norm, silent, rows):
    plan = plan_swap(small_vit(), norm)
    assert plan.counts() == {"swap": 4, "keep": 1, "refuse": 0}
    assert {(row.heads, row.num_prefix_tokens) for row in plan.swapped()} == {(3, 1 if norm == "rows" else 0)}
    assert "3 heads of Attention" in plan.rows[0].reason  # neither says that it has no use for heads
    plan = plan_swap(timm_model("swin_tiny_patch4_window7_224", img_size=64), norm)
    assert plan.counts() == {"swap": 24, "keep": 5, "refuse": 0}
    assert SwapPlan.from_json(plan.to_json()) == plan


def test_a_norm_that_says_nothing_is_told_nothing(silent):
    model = swap_norms(small_vit(), "silent")
    x, y = inputs_and_outputs(model, torch.randn(2, 3, 64, 64))
    torch.testing.assert_close(y, x / (x.abs().amax(1, keepdim=True) + norms_of(model)[0].eps))
    again = apply_plan(small_vit(), model.swap_plan)
    again.load_state_dict(model.state_dict())
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize("size", [(32, 96), (96, 32)])
def test_a_norm_that_needs_the_grid_gets_it(size, rows):
    model = swap_norms(small_vit(dynamic_img_size=True), "rows")
    x, y = inputs_and_outputs(model, torch.randn(2, 3, *size))
    assert x.shape[1] == 1 + 12
    patches = x[:, 1:].unflatten(1, (size[0] // 16, size[1] // 16))
    torch.testing.assert_close(y[:, 1:], (patches - patches.mean(2, keepdim=True)).flatten(1, 2))
    torch.testing.assert_close(y[:, 0], x[:, 0])


def test_swin(silent, rows, mine):
    images, small = torch.randn(1, 3, 64, 64), {"img_size": 64, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 4)}
    for norm in ("silent", "rows", "mine"):
        model = swap_norms(timm_model("swin_tiny_patch4_window7_224", **small), norm, start="fresh")
        assert model(images).isfinite().all()


@pytest.mark.parametrize("norm", ["silent", "rows"])
def test_a_norm_that_may_mix_tokens_is_refused_in_causal_models(norm, silent, rows):
    for plan in (plan_swap(Language(), norm), plan_swap(small_vit(), norm, causal=True)):
        assert all(row.action == "refuse" and "mixes tokens" in row.reason for row in plan.rows[:4])
    with pytest.raises(ValueError, match="a token would see later ones"):
        swap_norms(small_vit(), norm, causal=True)


def test_a_norm_of_single_tokens_is_not(mine):
    assert plan_swap(Language(), "mine").counts()["swap"] == 4


def test_only_the_declared_norm_stands_among_queries_and_windows(mine, silent):
    for norm, action in (("mine", "keep"), ("silent", "refuse")):
        plan = plan_swap(small_vit(qk_norm=True), norm)
        assert {row.action for row in plan.rows if row.path.endswith("q_norm")} == {action}


def test_a_grid_that_a_norm_does_not_take(rows):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1)
    (first, *_) = plan_swap(encoder, "rows").rows
    assert (first.action, first.reason) == ("refuse", "rows is made for images, this is a sequence")
    with pytest.raises(ValueError, match="the norm 'rows' is made for images, this is a sequence; 'dtn' fits both"):
        dynavit.create_model("test_sequence", norm="rows")


def test_sequences_have_a_grid_too(tmp_path):
    text = ROWS.replace("needs_grid = True", "needs_grid, dimensions = True, (1,)")
    text = text.replace("rows, cols = grid", "assert grid == (10,)").replace(".unflatten(1, (rows, cols))", "[:, None]")
    with a_guest(tmp_path / "sequence.py", text):
        for batch_first in (True, False):
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
            model = swap_norms(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), "rows")
            model(torch.randn((3, 10, 16) if batch_first else (10, 3, 16)))
        (first, *_) = plan_swap(small_vit(), "rows").rows
        assert first.reason == "rows is made for sequences, this is an image"


def test_a_norm_made_of_modules_can_leave_again(tmp_path):
    text = """
import torch
import dynavit

@dynavit.register_norm("nested")
class Nested(dynavit.Norm):
    def __init__(self, dim, **shared):
        super().__init__(dim, **shared)
        self.inner = torch.nn.LayerNorm(dim, elementwise_affine=False)

    def normalise(self, x, grid, mask):
        return 2 * self.inner(x)
"""
    with a_guest(tmp_path / "nested.py", text):
        model = swap_norms(small_vit(), "nested")
        back = swap_norms(model, "ln")
        assert len(back.swap_plan.rows) == 5
        images = torch.randn(1, 3, 64, 64)
        torch.testing.assert_close(back(images), small_vit()(images))


# ---- Folded


def test_a_norm_with_an_affine_map_folds_away(fixed):
    assert folds("fixed")
    torch.manual_seed(0)
    ours = dynavit.create_model("vit_micro", norm="fixed").eval()
    assert {type(norm).__name__ for norm in norms_of(ours)} == {"Fixed"}  # at the end too
    theirs = swap_norms(small_vit(), "fixed")
    assert theirs.swap_plan.counts() == {"swap": 5, "keep": 0, "refuse": 0}
    for model in (ours, theirs):
        nn.init.normal_(norms_of(model)[0].bias)
        folded = dynavit.fold(model)
        assert not norms_of(folded)
        assert folded.fold_report.count("folded") == len(folded.fold_report.rows) == len(norms_of(model))
        assert folded.fold_report.error <= folded.fold_report.limit


def test_a_transform_of_its_own_is_left_alone(tmp_path):
    """Its weight is a power here: no linear layer can take it."""
    text = SILENT.replace("def normalise(self, x, grid, mask):", "def transform(self, x, grid, mask):").replace(
        "return x / (x.abs().amax(1, keepdim=True) + self.eps)", "return x * x.abs().clamp(min=0.1) ** self.weight"
    )
    with a_guest(tmp_path / "power.py", text):
        folded = dynavit.fold(swap_norms(small_vit(), "silent"))
        kept = {row.path: row for row in folded.fold_report.rows}["blocks.0.norm1"]
        assert kept.action == "left" and "a forward of its own" in kept.reason


# ---- Registration


def test_ours_are_no_guests():
    assert all(NORMS.guest(name) is None for name in dynavit.list_norms())


def test_a_guest_knows_its_file(mine):
    assert NORMS.guest("mine").file == str(EXAMPLE)


def norm_class(**members):
    return type("Bad", (dynavit.Norm,), {"normalise": lambda self, x, grid, mask: x, **members})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (nn.LayerNorm, "'bad' is to be a subclass of dynavit.Norm; got <class 'torch.nn"),
        (lambda: None, "subclass of dynavit.Norm"),
        (type("Bad", (dynavit.Norm,), {}), "Bad does not say how it normalises; write `def normalise"),
        (norm_class(__init__=lambda self, dim, heads=1, eps=1e-5: None), r"Bad takes no affine, device, dtype.*\*\*shared"),
        (norm_class(__init__=lambda self, width, **shared: None), "Bad takes no dim"),
        (norm_class(__init__=lambda self, dim, power, **shared: None), "cannot be built without power"),
        (norm_class(dimensions=2), r"dimensions = 2; it is \(2,\), \(1,\) or \(1, 2\)"),
        (norm_class(starts_as="bn"), "starts_as = 'bn'"),
        (norm_class(mixing_parameters=("share",)), "write `def start_at"),
        (norm_class(__init__=lambda self, dim, num_prefix_tokens=0, **shared: None), "declare `needs_grid = True`"),
    ],
)
def test_what_is_wrong_with_a_class_is_said_when_it_is_registered(bad, message):
    with pytest.raises(ValueError, match=f"the norm 'bad'.*{message}" if "'bad'" not in message else message):
        register_norm("bad")(bad)
    assert "bad" not in dynavit.list_norms()


def test_names_of_ours_are_taken():
    with pytest.raises(ValueError, match="'dtn' is registered already, by dynavit"):
        register_norm("dtn")(norm_class())


def test_options_may_be_positional_too(tmp_path):
    text = """
import dynavit

@dynavit.register_norm("floored")
class Floored(dynavit.Norm):
    def __init__(self, dim, floor=0.5, **shared):
        super().__init__(dim, **shared)
        self.floor = floor

    def normalise(self, x, grid, mask):
        return x.clamp(min=self.floor)
"""
    with a_guest(tmp_path / "options.py", text):
        assert dynavit.create_norm("floored", 4, floor=1.0).floor == 1.0
        assert {row.name: row.options for row in norm_rows()}["floored"] == {"floor": 0.5}
        with pytest.raises(ValueError, match="'flor'.*'floor'"):
            dynavit.create_norm("floored", 4, flor=1.0)


def test_an_entry_point_is_checked_too(tmp_path, monkeypatch):
    package = tmp_path / "norm_offers-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: norm_offers\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[dynavit.norms]\noffered = norm_offering:Thing\n")
    (tmp_path / "norm_offering.py").write_text("class Thing: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(NORMS, "_things", copy.copy(NORMS._things))
    monkeypatch.setattr(NORMS, "_guests", copy.copy(NORMS._guests))
    assert "offered" in dynavit.list_norms()
    with pytest.raises(ValueError, match="the norm 'offered' is to be a subclass of dynavit.Norm"):
        dynavit.create_norm("offered", 4)


# ---- Seats


def test_a_place_tells_what_a_norm_asks_for(rows):
    seat = Seat(12, heads=3, num_prefix_tokens=2)
    assert (seat_norm("rows", seat).num_prefix_tokens, seat_norm("rows", seat).heads) == (2, 3)
    assert seat_norm("rows", seat, {"num_prefix_tokens": 0, "heads": 1}).num_prefix_tokens == 0  # options go first
    assert seat_norm("ln", seat, eps=0.1).eps == 0.1
    assert seat_norm("dtn", Seat(12, 3, 1, ndim=1)).ndim == 1
    with pytest.raises(ValueError, match="'dtn_released' is made for images"):
        seat_norm("dtn_released", Seat(12, 3, 1, ndim=1))
