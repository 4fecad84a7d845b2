"""Derivatives of every norm however torch is asked for them: right numbers, or an error in words, never wrong ones.

dim 4, 2 heads, 4 tokens (a 2 x 2 grid), float64.
"""

import copy
import io
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad, functional
from torch.func import functional_call, grad, hessian, jacfwd, jvp, vjp, vmap

from dynavit.norms import DynamicTokenNorm, Norm, list_norms
from dynavit.norms.factory import norm_class_of
from dynavit.norms.statistics import distributed
from dynavit.norms.statistics.smoothed import SmoothedNorm
from norms.test_contract import make as make_wide
from norms.test_contract import tokens as make_tokens

OWN_BACKWARD = ("power", "un", "zscore", "minmax", "ldfn")  # in training a rule, not a derivative
REFUSED = (NotImplementedError,)

all_norms = pytest.mark.parametrize("name", list_norms())
# torch's own forward-mode rules are scripted, and its exporter by tracing is old; both warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*(feature will be removed|legacy TorchScript):DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
modes = pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
own_backward = pytest.mark.parametrize("name", OWN_BACKWARD)


def make(name: str, training: bool, steps: int = 2) -> Norm:
    """A norm in the middle of its training."""
    torch.manual_seed(0)
    norm = make_wide(name, dim=4, heads=2, dtype=torch.float64)
    for step in range(steps):
        norm(tokens(seed=10 + step)).sum().backward()
    norm.zero_grad()
    return norm.train(training)


def tokens(samples: int = 2, seed: int = 0) -> Tensor:
    return make_tokens(samples, 4, 4, seed=seed, dtype=torch.float64)


def as_function(norm: Norm) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """The layer as a function of its tokens and parameters, and values for them."""
    names, values = zip(*norm.named_parameters(), strict=True)
    leaves = tuple(value.detach().clone() for value in (tokens(), *values))
    return lambda x, *rest: functional_call(norm, dict(zip(names, rest, strict=True)), (x,)), leaves


def loss(norm: Norm, x: Tensor) -> Tensor:
    return norm(x).pow(3).sum()


def has_memory(name: str) -> bool:
    return issubclass(norm_class_of(name), SmoothedNorm)


# ------------------------------------------------------------------------------------------------ second derivatives


@all_norms
@modes
def test_second_derivatives_are_right_or_refused(name, training):
    norm = make(name, training)
    call, leaves = as_function(norm)
    leaves = tuple(leaf.requires_grad_() for leaf in leaves)
    if (training and name in OWN_BACKWARD) or isinstance(norm, DynamicTokenNorm):
        way_out = r'backend="torch"' if isinstance(norm, DynamicTokenNorm) else r"call \.eval\(\) first"
        with pytest.raises(REFUSED, match=way_out):
            torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
    else:
        assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


def by_grad(norm: Norm, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    # x is reached past the norm's backward pass as well: along this way alone the number would be wrong.
    (first,) = torch.autograd.grad((x * norm(x)).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


SECOND = {
    "grad": by_grad,
    "hessian": lambda norm, x: functional.hessian(lambda x: loss(norm, x), x),
    "vectorised hessian": lambda norm, x: functional.hessian(lambda x: loss(norm, x), x, vectorize=True),
    "hvp": lambda norm, x: functional.hvp(lambda x: loss(norm, x), x, x)[1],
}


@pytest.mark.parametrize("name", [*OWN_BACKWARD, "dtn"])
@pytest.mark.parametrize("way", SECOND)
def test_refused_by_every_way_to_ask(name, way):
    with pytest.raises(REFUSED, match=r"call \.eval\(\) first|backend=\"torch\""):
        SECOND[way](make(name, training=True), tokens())


@own_backward
def test_a_frozen_norm_refuses_too(name):
    with pytest.raises(REFUSED, match=r"call \.eval\(\) first"):
        by_grad(make(name, training=True).requires_grad_(False), tokens())


@pytest.fixture
def lone_process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_sums_over_processes_have_every_derivative(lone_process_group, monkeypatch):
    """The sum of a lone process is the identity, but through the collective."""
    monkeypatch.setattr(distributed, "process_count", lambda: 2)
    x = tokens().requires_grad_()

    def call(x: Tensor) -> Tensor:
        total, squares = distributed.sum_over_processes(x.sum(0), x.square().sum(0))
        return total * squares

    assert torch.autograd.gradcheck(call, (x,))
    assert torch.autograd.gradgradcheck(call, (x,))


# -------------------------------------------------------------------------------------------------------- torch.func


def reference(name: str, training: bool) -> Norm:
    """The same layer as `make`, by operations of which torch knows every derivative."""
    norm = make(name, training)
    if isinstance(norm, DynamicTokenNorm):
        norm.backend = "torch"
    return norm


def alone(norm: Norm) -> Callable[[Tensor], Tensor]:
    """Of one sample (t, c)."""
    return lambda sample: loss(norm, sample[None])


def jacobian(norm: Norm, x: Tensor) -> Tensor:
    return functional.jacobian(norm, x)


def looped_gradients(norm: Norm, x: Tensor) -> Tensor:
    """Of each sample alone, by plain autograd."""
    return torch.stack([functional.jacobian(alone(norm), sample) for sample in x])


def by_dual_numbers(norm: Norm, x: Tensor) -> Tensor:
    with torch.no_grad(), forward_ad.dual_level():
        return forward_ad.unpack_dual(norm(forward_ad.make_dual(x, x.cos()))).tangent


def by_vmap_over_backward(norm: Norm, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    y = norm(x)
    rows = vmap(lambda cotangent: torch.autograd.grad(y, x, cotangent)[0])(
        torch.eye(y.numel(), dtype=x.dtype).view(-1, *y.shape)
    )
    return rows.view(*y.shape, *x.shape)


# What torch.func is asked, and the same number by plain autograd or a plain loop.
QUESTIONS: dict[str, tuple[Callable[[Norm, Tensor], Tensor], Callable[[Norm, Tensor], Tensor]]] = {
    "vmap": (
        lambda norm, x: vmap(lambda sample: norm(sample[None])[0])(x),
        lambda norm, x: torch.cat([norm(sample[None]) for sample in x]),
    ),
    "vmap without gradients": (
        lambda norm, x: torch.no_grad()(vmap(lambda sample: norm(sample[None])[0]))(x),
        lambda norm, x: torch.cat([norm(sample[None]) for sample in x]),
    ),
    "vmap over the second axis": (
        lambda norm, x: vmap(norm, in_dims=1, out_dims=1)(torch.stack([x, x.cos()], 1)),
        lambda norm, x: torch.stack([norm(x), norm(x.cos())], 1),
    ),
    "grad": (lambda norm, x: grad(lambda x: loss(norm, x))(x), lambda norm, x: functional.jacobian(lambda x: loss(norm, x), x)),
    "vjp": (lambda norm, x: vjp(norm, x)[1](x.cos())[0], lambda norm, x: functional.vjp(norm, x, x.cos())[1]),
    "jvp": (
        lambda norm, x: jvp(norm, (x,), (x.cos(),))[1],
        lambda norm, x: torch.einsum("btcuvw,uvw->btc", jacobian(norm, x), x.cos()),
    ),
    "dual numbers": (by_dual_numbers, lambda norm, x: torch.einsum("btcuvw,uvw->btc", jacobian(norm, x), x.cos())),
    "jacfwd": (lambda norm, x: jacfwd(norm)(x), jacobian),
    "hessian": (
        lambda norm, x: hessian(lambda x: loss(norm, x))(x),
        lambda norm, x: functional.hessian(lambda x: loss(norm, x), x),
    ),
    "gradients of each sample": (lambda norm, x: vmap(grad(alone(norm)))(x), looped_gradients),
    "batched cotangents": (lambda norm, x: functional.jacobian(norm, x, vectorize=True), jacobian),
    "vmap over backward": (by_vmap_over_backward, jacobian),
}
ORDINARY_FORWARD = ("batched cotangents", "vmap over backward")


def has_an_answer_in_training(name: str, question: str) -> bool:
    """Of norms with a memory. Where only the backward pass is transformed, the memory of the forward pass can move."""
    if question == "dual numbers":
        return name not in OWN_BACKWARD
    return question in ORDINARY_FORWARD and name not in ("power", "un")


# By default one norm of each kind is asked everything, the others one question of each kind.
KINDS = ("ln", "bn", "dtn", "ldfn", "power", "un")
ONE_OF_EACH = ("vmap", "gradients of each sample", "jvp", "vmap over backward")


@pytest.mark.parametrize(
    ("name", "question"),
    [
        pytest.param(name, question, marks=[] if name in KINDS or question in ONE_OF_EACH else [pytest.mark.slow])
        for name in list_norms()
        for question in QUESTIONS
    ],
)
@modes
def test_transforms_are_right_or_refused(name, training, question):
    """In training a norm that remembers batches refuses what would be forgotten or counted in a wrong way."""
    ask, expect = QUESTIONS[question]
    norm = make(name, training)
    if training and has_memory(name) and not has_an_answer_in_training(name, question):
        before = copy.deepcopy(norm.state_dict())
        # The old vmap of torch.autograd.functional cannot be recognised; torch itself refuses.
        with pytest.raises(RuntimeError, match=r"in training .* call \.eval\(\) first|vmap: aten::\w+_\(.* is not possible"):
            ask(norm, tokens())
        if question not in ORDINARY_FORWARD:
            torch.testing.assert_close(norm.state_dict(), before, rtol=0, atol=0)
        return
    torch.testing.assert_close(ask(norm, tokens()), expect(reference(name, training), tokens()))


@all_norms
def test_gradients_of_each_sample_for_the_parameters(name):
    norm = make(name, training=not has_memory(name))
    parameters = {key: value.detach() for key, value in norm.named_parameters()}

    def of_one(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(norm, parameters, (sample[None],)).pow(3).sum()

    found = vmap(grad(of_one), (None, 0))(parameters, tokens())
    plain = reference(name, training=norm.training)
    for sample, x in enumerate(tokens()):
        expected = torch.autograd.grad(loss(plain, x[None]), list(plain.parameters()))
        torch.testing.assert_close([value[sample] for value in found.values()], list(expected))


# torch 2.13's tracer itself instantiates autograd.Function, and warns.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", ["dtn", "ln"])
def test_transforms_inside_a_compiled_function(name):
    torch.compiler.reset()
    norm = make(name, training=True)
    of_each = vmap(grad(alone(norm)))
    found = torch.compile(of_each, backend="aot_eager")(tokens())
    torch.testing.assert_close(found, looped_gradients(norm, tokens()))


# --------------------------------------------------------------------------------------------------------- torch.jit


@all_norms
@modes
def test_traces_or_says_why_not(name, training):
    norm = make(name, training)
    traced = copy.deepcopy(norm)
    if training and name in OWN_BACKWARD:
        with pytest.raises(REFUSED, match=r"torch\.jit.* call \.eval\(\) first"):
            torch.jit.trace(traced, (tokens(),))
        return
    program = torch.jit.trace(traced, (tokens(),), check_trace=False)
    file = io.BytesIO()
    torch.jit.save(program, file)
    file.seek(0)
    norm(tokens())  # as the tracer did
    for x in (tokens(seed=1), tokens(5, seed=2)):
        torch.testing.assert_close(torch.jit.load(file)(x), copy.deepcopy(norm)(x))
        file.seek(0)


@all_norms
def test_the_old_onnx_exporter(name):
    onnxruntime = pytest.importorskip("onnxruntime")
    norm = make_wide(name).eval()
    file = io.BytesIO()
    torch.onnx.export(norm, (make_tokens(),), file, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    session = onnxruntime.InferenceSession(file.getvalue())
    for x in (make_tokens(seed=1), make_tokens(5, 16, 32, seed=2)):
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), norm(x), rtol=1e-4, atol=1e-5)


@all_norms
def test_scripting_names_what_to_use_instead(name):
    model = nn.Sequential(nn.Linear(4, 4), make(name, training=False))
    with pytest.raises(REFUSED, match=r"torch\.jit\.script cannot read .*torch\.compile.*torch\.export"):
        torch.jit.script(model)
