"""Promises of every norm in the registry.

dim 32, 4 heads, 16 tokens (a 4 x 4 grid) unless a test says otherwise.
"""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from dynavit.norms import Norm, create_norm, list_norms
from dynavit.norms.annealed import AnnealedNorm
from dynavit.norms.factory import norm_class_of, options_of

DIM, HEADS, SIDE = 32, 4, 4
TOKENS = SIDE * SIDE

all_norms = pytest.mark.parametrize("name", list_norms())


def make(name: str, dim: int = DIM, heads: int = HEADS, **options) -> Norm:
    """A norm whose parameters are not at their start, where a gain of 1 or a bias of 0 could hide a mistake."""
    norm = create_norm(name, dim, heads=heads, **options)
    if isinstance(norm, AnnealedNorm):
        norm.set_progress(1, 2)  # while it is LayerNorm alone, the rest of it shows nowhere
        assert 0.1 < norm.blend < 0.9
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += (0.2 * torch.randn(parameter.shape, generator=noise)).to(parameter)
    return norm


def tokens(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Tokens whose channels and samples have different means and scales."""
    noise = torch.Generator().manual_seed(seed)
    shape = shape or (3, TOKENS, DIM)
    scale = torch.linspace(0.5, 2.0, shape[-1])
    offset = torch.linspace(-1.0, 1.0, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return (torch.randn(shape, generator=noise) * scale + offset).to(dtype)


def holes(samples: int = 3, count: int = TOKENS) -> Tensor:
    """A mask with gaps, of different length for each sample, and real tokens in all of them."""
    valid = torch.rand(samples, count, generator=torch.Generator().manual_seed(2)) > 0.4
    valid[:, 0] = True
    return valid


def run(norm: Norm, x: Tensor, **call) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Output, input gradient and parameter gradients for a fixed cotangent."""
    x = x.detach().clone().requires_grad_()
    norm.zero_grad()
    y = norm(x, **call)
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y.dtype)
    y.backward(cotangent)
    return y.detach(), x.grad, {key: p.grad.clone() for key, p in norm.named_parameters() if p.grad is not None}


def all_finite(*values) -> bool:
    flat = [v for value in values for v in (value.values() if isinstance(value, dict) else [value])]
    return all(bool(v.isfinite().all()) for v in flat)


# ------------------------------------------------------------------------------------------------ shapes


@all_norms
def test_keeps_shape_and_trains_every_parameter(name):
    norm = make(name)
    y, grad, grads = run(norm, tokens())
    assert y.shape == (3, TOKENS, DIM)
    assert all_finite(y, grad, grads)
    assert grads.keys() == dict(norm.named_parameters()).keys()
    assert all(g.abs().max() > 0 for g in grads.values())


@all_norms
@pytest.mark.parametrize("masked", [False, True])
def test_grid_input_equals_token_input(name, masked):
    norm, x, valid = make(name), tokens(), holes()
    on_grid = copy.deepcopy(norm)
    flat = run(norm, x, grid=(2, 8), mask=valid if masked else None)
    square = run(on_grid, x.unflatten(1, (2, 8)), mask=valid.unflatten(1, (2, 8)) if masked else None)
    torch.testing.assert_close(square[0].flatten(1, 2), flat[0])
    torch.testing.assert_close(square[1].flatten(1, 2), flat[1])
    torch.testing.assert_close(square[2], flat[2])
    torch.testing.assert_close(on_grid.state_dict(), norm.state_dict())


@all_norms
def test_memory_layout_does_not_matter(name):
    norm, x = make(name), tokens()
    other = copy.deepcopy(norm)
    # As a convolution in channels-first order would hand them over.
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous()
    torch.testing.assert_close(other(strided), norm(x))


@all_norms
def test_affine_false_has_no_gain_and_no_bias(name):
    norm = create_norm(name, DIM, heads=HEADS, affine=False)
    assert norm.weight is None and norm.bias is None
    y, grad, _ = run(norm, tokens())
    assert all_finite(y, grad)
    # At its start the gain is 1 (ScaleNorm: sqrt(C)), the bias 0.
    gain = DIM**0.5 if name == "scale" else 1.0
    torch.testing.assert_close(y * gain, create_norm(name, DIM, heads=HEADS)(tokens()).detach())


# ------------------------------------------------------------------------------------------------- masks


@all_norms
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
def test_garbage_in_padding_reaches_nothing(name, garbage, training):
    norm, x, valid = make(name).train(training), tokens(), holes()
    clean, dirty = copy.deepcopy(norm), copy.deepcopy(norm)
    y0, grad0, grads0 = run(clean, torch.where(valid[..., None], x, 0.0), mask=valid)
    y, grad, grads = run(dirty, torch.where(valid[..., None], x, garbage), mask=valid)
    assert torch.equal(y, y0) and torch.equal(grad, grad0)
    assert all(torch.equal(grads[key], grads0[key]) for key in grads0)
    assert all_finite(y, grad, grads)
    assert torch.all(y[~valid] == 0), "padded outputs are 0"
    assert torch.all(grad[~valid] == 0), "padding gets no gradient"
    for key, value in dirty.state_dict().items():
        assert torch.equal(value, clean.state_dict()[key]), key


@all_norms
def test_mask_of_real_tokens_only_changes_nothing(name):
    norm, x = make(name, dtype=torch.float64), tokens(dtype=torch.float64)
    masked = copy.deepcopy(norm)
    y0, grad0, grads0 = run(norm, x)
    y, grad, grads = run(masked, x, mask=torch.ones(3, TOKENS, dtype=torch.bool))
    torch.testing.assert_close((y, grad, grads), (y0, grad0, grads0))
    torch.testing.assert_close(masked.state_dict(), norm.state_dict())


@all_norms
@pytest.mark.parametrize("who", ["one sample", "everyone"])
def test_nothing_but_padding_stays_finite(name, who):
    norm, valid = make(name), holes()
    if who == "everyone":
        valid[:] = False
    else:
        valid[1] = False
    y, grad, grads = run(norm, tokens(), mask=valid)
    assert all_finite(y, grad, grads, dict(norm.state_dict()))
    assert all_finite(norm.eval()(tokens()))


# -------------------------------------------------------------------------------------------- edge cases


@all_norms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "x",
    [
        pytest.param(torch.zeros(2, TOKENS, DIM), id="zeros"),
        pytest.param(torch.full((2, TOKENS, DIM), 3.0), id="constant"),
        pytest.param(tokens(1, TOKENS, 1).expand(2, TOKENS, DIM), id="constant tokens"),
        pytest.param(tokens(2, 1, DIM), id="one token"),
        pytest.param(tokens(1, TOKENS, DIM), id="one sample"),
        pytest.param(tokens(1, 1, DIM), id="one token of one sample"),
    ],
)
def test_finite_at_the_edges(name, x, dtype):
    norm = make(name, dtype=dtype)
    y, grad, grads = run(norm, x.to(dtype))
    assert y.dtype == dtype
    assert all_finite(y, grad, grads, dict(norm.state_dict()))
    assert all_finite(norm.eval()(x.to(dtype)))


# Options under which statistics are taken in another way.
VARIANTS = {"minmax": [{"extrema": "batch"}, {"extrema": "quantile"}], "dtn": [{"average": "uniform"}, {"backend": "torch"}]}


@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name in list_norms() for options in ({}, *VARIANTS.get(name, []))], ids=str
)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(0, TOKENS, DIM), (3, 0, DIM), (0, 0, DIM)], ids=["samples", "tokens", "either"])
def test_without_samples_or_tokens_nothing_happens(name, options, training, shape):
    norm = make(name, **options).train(training)
    before = copy.deepcopy(norm.state_dict())
    if norm.needs_grid and shape[1] == 0:
        with pytest.raises(ValueError, match="got 0 tokens"):
            norm(torch.zeros(shape))
        return
    y, grad, grads = run(norm, torch.zeros(shape))
    assert y.shape == grad.shape == shape
    assert all(not g.any() for g in grads.values())
    before.pop("iters", None)  # power counts every call
    torch.testing.assert_close({key: norm.state_dict()[key] for key in before}, before, rtol=0, atol=0)


@all_norms
def test_evaluation_keeps_the_state(name):
    norm = make(name).eval()
    before = copy.deepcopy(norm.state_dict())
    assert torch.equal(norm(tokens()), norm(tokens()))
    assert all(torch.equal(value, before[key]) for key, value in norm.state_dict().items())


@all_norms
def test_two_forwards_before_one_backward(name):
    norm = make(name)
    a, b = tokens(seed=4).requires_grad_(), tokens(seed=5).requires_grad_()
    (norm(a).square().sum() + norm(b).square().sum()).backward()
    assert all_finite(a.grad, b.grad, dict(norm.state_dict()))


# -------------------------------------------------------------------------------------------- derivatives


@all_norms
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_the_derivatives(name, masked):
    norm = make(name, dim=4, heads=2, dtype=torch.float64)
    if name in ("power", "un", "minmax", "ldfn"):
        norm.eval()  # its training rule is not the derivative: see test_power.py
    x = tokens(2, 4, 4, dtype=torch.float64)
    valid = torch.tensor([[True, True, False, True], [True, False, True, True]]) if masked else None
    names, values = zip(*norm.named_parameters(), strict=True)
    leaves = [value.detach().clone().requires_grad_() for value in (x, *values)]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(norm, dict(zip(names, parameters, strict=True)), (x,), {"mask": valid})

    assert torch.autograd.gradcheck(call, leaves)


# ----------------------------------------------------------------------------------------------- precision


@all_norms
@pytest.mark.parametrize("masked", [False, True])
def test_bfloat16_tokens_have_float32_statistics(name, masked):
    """One rounding of the result is all that bfloat16 costs."""
    norm, x = make(name), tokens(dtype=torch.bfloat16)
    mask = holes() if masked else None
    exact = copy.deepcopy(norm).double()(x.double(), mask=mask)
    y = norm(x, mask=mask)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), exact, rtol=2**-8, atol=1e-4)


@all_norms
def test_bfloat16_module(name):
    norm = make(name, dtype=torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in norm.parameters())
    for layer in (norm, make(name).bfloat16()):
        y, grad, grads = run(layer, tokens(dtype=torch.bfloat16))
        assert y.dtype == grad.dtype == torch.bfloat16
        assert all_finite(y, grad, grads)
        exact = copy.deepcopy(layer).double()
        exact.load_state_dict({key: value.double() for key, value in layer.state_dict().items()})
        torch.testing.assert_close(layer.eval()(tokens()).double(), exact.eval()(tokens().double()), rtol=1e-4, atol=1e-4)


@all_norms
@pytest.mark.parametrize("masked", [False, True])
def test_autocast_changes_nothing(name, masked):
    """No statistic goes through an operation that autocast would run in half precision."""
    norm, x, mask = make(name), tokens(), holes() if masked else None
    other = copy.deepcopy(norm)
    plain = run(norm, x, mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = run(other, x, mask=mask)
        assert other(x.bfloat16()).dtype == torch.bfloat16
    assert mixed[0].dtype == torch.float32
    torch.testing.assert_close(mixed, plain, rtol=1e-5, atol=1e-6)


@all_norms
def test_double(name):
    y, grad, grads = run(make(name, dtype=torch.float64), tokens(dtype=torch.float64))
    assert {y.dtype, grad.dtype, *(g.dtype for g in grads.values())} == {torch.float64}
    later = make(name).double()
    assert later(tokens(dtype=torch.float64)).dtype == torch.float64


# ---------------------------------------------------------------------------------------- torch's machinery


def check_compiled(name: str, backend: str) -> None:
    """Compiled equals eager: outputs, gradients and what the layer remembers, without and with a mask."""
    torch.compiler.reset()
    eager, mask = make(name), holes()
    compiled = copy.deepcopy(eager)
    fast = torch.compile(compiled, fullgraph=True, backend=backend)
    for step, call in enumerate([{}, {"mask": mask}]):
        expected = run(eager, tokens(seed=step), **call)
        compiled.zero_grad()
        x = tokens(seed=step).requires_grad_()
        y = fast(x, **call)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(3)))
        found = (y.detach(), x.grad, {key: p.grad for key, p in compiled.named_parameters()})
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(compiled.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)


# torch 2.13's tracer itself instantiates autograd.Function, and inductor uses torch.jit; both warn.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", [pytest.param("dtn", marks=pytest.mark.slow), "un"])  # dtn by default: test_dtn_op.py
def test_compiles_to_one_graph(name):
    check_compiled(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@all_norms
def test_every_norm_compiles_to_one_graph(name):
    check_compiled(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@all_norms
def test_inductor_gives_the_same_numbers(name):
    check_compiled(name, "inductor")


# By default one of each kind; DTN in test_dtn_op.py.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ("ln", "bn", "ldfn", "sn", "un") else [pytest.mark.slow]) for n in list_norms()]
)
def test_exports(name):
    norm, x = make(name).eval(), tokens()
    program = torch.export.export(norm, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    torch.testing.assert_close(program.module()(x), norm(x), rtol=1e-4, atol=1e-5)
    more = tokens(5, TOKENS, DIM, seed=1)
    torch.testing.assert_close(program.module()(more), norm(more), rtol=1e-4, atol=1e-5)


@all_norms
def test_reads_no_values_on_the_host(name):
    """Tensors on the meta device have no values: asking for one, as `.item()` or `if tensor:` would, raises."""
    norm = create_norm(name, DIM, heads=HEADS, device="meta")
    assert all(t.is_meta for t in (*norm.parameters(), *norm.buffers()))
    for mask in (None, torch.empty(3, TOKENS, dtype=torch.bool, device="meta")):
        x = torch.empty(3, TOKENS, DIM, device="meta", requires_grad=True)
        norm(x, mask=mask).sum().backward()
        assert x.grad.shape == x.shape


@all_norms
def test_meta_module_comes_alive_through_reset_parameters(name):
    norm = create_norm(name, DIM, heads=HEADS, device="meta").to_empty(device="cpu")
    norm.reset_parameters()
    torch.testing.assert_close(norm.state_dict(), create_norm(name, DIM, heads=HEADS).state_dict())


@all_norms
def test_copies_and_state_dicts(name):
    norm = make(name)
    run(norm, tokens())  # moves the running statistics
    clone = copy.deepcopy(norm)
    fresh = create_norm(name, DIM, heads=HEADS)
    fresh.load_state_dict(norm.state_dict())
    for other in (clone, fresh):
        torch.testing.assert_close(other.state_dict(), norm.state_dict())
        assert not {t.data_ptr() for t in other.state_dict().values()} & {t.data_ptr() for t in norm.state_dict().values()}
        assert torch.equal(copy.deepcopy(other)(tokens(seed=1)), copy.deepcopy(norm)(tokens(seed=1)))
        assert torch.equal(other.eval()(tokens(seed=1)), copy.deepcopy(norm).eval()(tokens(seed=1)))


@all_norms
def test_no_parameter_decays(name):
    norm = make(name)
    assert norm.no_weight_decay_parameters() == {key for key, _ in norm.named_parameters()}


# ------------------------------------------------------------------------------------------ facts by which norms are seated


@all_norms
def test_mixes_tokens_if_it_says_so(name):
    norm, x = make(name, dtype=torch.float64), tokens(dtype=torch.float64)
    other = copy.deepcopy(norm)
    changed = torch.cat([x[:, :1] + torch.linspace(-1, 1, DIM), x[:, 1:]], 1)
    assert norm.mixes_tokens == (not torch.equal(norm(x)[:, 1:], other(changed)[:, 1:]))


@all_norms
def test_uses_heads_if_it_says_so(name):
    one, four = create_norm(name, DIM), create_norm(name, DIM, heads=HEADS)
    shapes = [{key: value.shape for key, value in norm.state_dict().items()} for norm in (one, four)]
    assert one.uses_heads == (shapes[0] != shapes[1] or not torch.equal(one(tokens()), four(tokens())))


@all_norms
def test_needs_the_grid_if_it_says_so(name):
    norm, x = make(name), tokens()
    other = copy.deepcopy(norm)
    assert norm.needs_grid == (not torch.equal(norm(x, grid=(2, 8)), other(x, grid=(8, 2))))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "kind"), [("ln", "ln"), ("rms", "rms"), ("sn", "ln"), ("dtn", "ln")])
def test_equals_the_norm_that_it_starts_as(name, kind, training):
    norm, x = make(name, dtype=torch.float64).train(training), tokens(dtype=torch.float64)
    assert norm.starts_as == kind
    assert set(norm.mixing_parameters) <= dict(norm.named_parameters()).keys()
    with torch.no_grad():
        norm.start_at(1.0)
    old = {
        "ln": lambda: F.layer_norm(x, (DIM,), norm.weight, norm.bias, norm.eps),
        "rms": lambda: F.rms_norm(x, (DIM,), norm.weight, norm.eps),
    }
    y = norm(x)
    torch.testing.assert_close(y, old[kind](), rtol=1e-13, atol=1e-13)
    (y * tokens(dtype=torch.float64).flip(0)).sum().backward()
    mixing = [getattr(norm, parameter) for parameter in norm.mixing_parameters if parameter != "position"]
    assert all(parameter.grad.all() for parameter in mixing), "a start that cannot be left"


def test_others_start_as_no_norm():
    assert {name for name in list_norms() if norm_class_of(name).starts_as is not None} == {"ln", "rms", "sn", "dtn"}
    assert create_norm("dtn", DIM, heads=HEADS, fixed_var_lambda=0.5).starts_as is None
    assert create_norm("dtn", DIM, heads=HEADS, only_var=True).starts_as == "ln"


@all_norms
def test_takes_over_what_the_old_norm_has(name):
    norm = make(name)
    for old in ("ln", "rms", "BatchNorm"):
        for own, theirs in norm.inherited(old).items():
            assert hasattr(norm, own) and theirs in ("weight", "bias")


@all_norms
def test_says_in_one_line_what_it_is(name):
    first = (type(create_norm(name, DIM)).__doc__ or "").partition("\n")[0]
    assert first.endswith(".") and len(first) <= 120


# --------------------------------------------------------------------------------------------- bad input


def number_options(name: str) -> list[str]:
    options = options_of(norm_class_of(name)).items()
    floats = [key for key, option in options if type(option.default) is float or "float" in str(option.annotation)]
    assert "eps" in floats
    return floats


@all_norms
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_options_are_finite_numbers(name, value):
    for option in number_options(name):
        with pytest.raises(ValueError, match=rf"option {option} of norm '{name}' is {value}; it has to be a finite number"):
            create_norm(name, DIM, heads=HEADS, **{option: value})


@all_norms
def test_eps_is_not_negative(name):
    """The square root of a small variance would be NaN."""
    for value in (-1e-5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"eps is added to a variance, at least 0 and finite; got {value:g}"):
            norm_class_of(name)(DIM, eps=value)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("power", {"alpha_fwd": 1.5}, "between 0 and 1; got 1.5 and 0.9"),
        ("power", {"alpha_bwd": float("nan")}, "between 0 and 1; got 0.9 and nan"),
        ("power", {"warmup": -1}, "warmup counts steps, at least 0; got -1"),
        ("un", {"warmup": float("nan")}, "warmup counts steps, at least 0; got nan"),
        ("zscore", {"r_max": float("inf")}, "finite limits; got inf"),
        ("minmax", {"tau": float("nan")}, "finite limits; got 3.0, 5.0 and nan"),
        ("ldfn", {"anneal": float("nan")}, "shares of the training run, together at most 1; got 0.1 and nan"),
        ("prepbn", {"ln_eps": -1.0}, "ln_eps is added to a variance, at least 0 and finite; got -1"),
    ],
)
def test_numbers_out_of_range_are_named(name, options, said):
    with pytest.raises(ValueError, match=said):
        norm_class_of(name)(DIM, **options)


@all_norms
def test_bad_input_is_named(name):
    norm = make(name)
    for shape in [(32,), (16, 32), (1, 1, 4, 4, 32)]:
        takes = r"it takes \(batch, tokens, channels\) or \(batch, rows, cols, channels\)"
        with pytest.raises(ValueError, match=rf"shape {re.escape(str(shape))}; {takes}"):
            norm(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"got 31 channels \(input \(3, 16, 31\)\), was built for 32, channels last"):
        norm(tokens()[..., :31])
    with pytest.raises(ValueError, match=r"got numbers of type torch\.int64"):  # they would come back truncated
        norm(tokens().long())
    with pytest.raises(ValueError, match=r"\(4, 4\) grid.*\(2, 8\)"):
        norm(tokens().unflatten(1, (4, 4)), grid=(2, 8))
    with pytest.raises(ValueError, match="boolean"):
        norm(tokens(), mask=holes().float())
    with pytest.raises(ValueError, match=r"\(3, 15\).*3 samples of 16 tokens"):
        norm(tokens(), mask=holes()[:, 1:])
    with pytest.raises(ValueError, match=r"32 channels cannot be split into 5 heads.*\[1, 2, 4, 8, 16, 32\]"):
        create_norm(name, DIM, heads=5)
    with pytest.raises(ValueError, match="'hedas'.*'heads'"):
        create_norm(name, DIM, hedas=4)


class Widened(Norm):
    """A norm of one's own that calculates in float64 and forgets to come back."""

    def normalise(self, x, grid, mask):
        return x.double() - x.double().mean(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 6, 4), (2, 2, 3, 4)], ids=str)
def test_the_result_has_the_dtype_of_the_tokens_whatever_a_norm_returns(shape, dtype):
    assert Widened(4)(torch.ones(shape, dtype=dtype)).dtype == dtype
