"""Norms by C: the numbers of torch's operations, which equations are tested with elsewhere, on every branch of the C code."""

import copy
import ctypes
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynavit.norms.native_library as native_library
from dynavit.norms import create_norm, feature, passes, sn
from dynavit.norms.annealed import AnnealedNorm
from dynavit.norms.native_library import NativeLibrary
from dynavit.norms.passes import build, native
from dynavit.norms.statistics import projected_map, running, standardised
from norms.test_contract import run

SOURCES = sorted(Path(build.__file__).parent.glob("*.[ch]"))
HEADS = 2
NORMS = {
    "bn": {},
    "repbn": {},
    "prepbn": {},
    "gn": {},
    "in": {"unbiased": True},
    "zscore": {"eta": 0.3},
    "minmax": {},
    "sn": {},
    "ldfn": {"rms": True},
    "ldfn, channels": {"groups": "channel", "eta": None},
}
# Batch, tokens, channels: less than a vector and a part; several parts, chunks and vectors, with a rest of each.
SHAPES = {"small": (3, 5, 6), "large": (2, 1100, 70)}


def layer(name: str, dim: int, dtype: torch.dtype = torch.float64, progress: float = 0.5, **options):
    norm = create_norm(name.partition(",")[0], dim, heads=HEADS, dtype=dtype, **NORMS[name], **options)
    if isinstance(norm, AnnealedNorm):
        norm.set_progress(round(1000 * progress), 1000)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += (0.2 * torch.randn(parameter.shape, generator=noise)).to(parameter)
    return norm


def batches(shape: tuple[int, ...], count: int, dtype: torch.dtype = torch.float64):
    noise = torch.Generator().manual_seed(0)
    scale = torch.linspace(0.5, 2.0, shape[-1])
    return [(torch.randn(shape, generator=noise) * scale * (1 + at % 3) + at).to(dtype) for at in range(count)]


@pytest.fixture
def by_torch(monkeypatch):
    """Norms as on a machine without a compiler."""

    def switch() -> None:
        for module in (passes, standardised, running, projected_map, feature, sn):
            monkeypatch.setattr(module, "may_be_native", lambda _: False)

    return switch


def history(norm, xs) -> list:
    """Everything that a norm gives and remembers over several steps."""
    found = [run(norm, x) for x in xs]
    return [found, norm.state_dict(), norm.eval()(xs[0]).detach()]


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NORMS)
def test_equals_torchs_operations(name, shape, deferred, by_torch):
    """Results, gradients and memory, over more steps than a window holds."""
    xs = batches(SHAPES[shape], 11 if shape == "small" else 2)
    norm = layer(name, xs[0].shape[-1])
    if deferred and hasattr(norm, "defer_statistics"):
        norm.defer_statistics()
    other = copy.deepcopy(norm)
    assert passes.may_be_native(xs[0])
    steps = []
    for each in (norm, other):
        if each is other:
            by_torch()
        steps.append(history(each, xs))
        if deferred and hasattr(each, "commit_statistics"):
            each.commit_statistics()
            steps[-1].append(each.state_dict())
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_single_precision_and_no_affine_map(name, affine, by_torch):
    x = batches((2, 70, 40), 1, torch.float32)[0]
    norm = layer(name, 40, torch.float32, affine=affine)
    other = copy.deepcopy(norm)
    found = run(norm, x)
    by_torch()
    torch.testing.assert_close(found, run(other, x), rtol=2e-5, atol=2e-4)
    torch.testing.assert_close(norm.state_dict(), other.state_dict(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["zscore", "minmax", "ldfn"])
def test_outliers_are_clipped_alike(name, by_torch):
    """The median of a window in any order, and statistics far beyond it on both sides."""
    noise = torch.Generator().manual_seed(0)
    norm = layer(name, 70, tau=1.0)
    other, rows = copy.deepcopy(norm), norm.pending.shape[0]
    steps = [1 + torch.rand(rows, 70, generator=noise, dtype=torch.float64) for _ in range(30)]
    for at in range(10, 30, 3):
        steps[at] *= 50 if at % 2 else 0.02
    weight = torch.full((rows, 1), 9.0, dtype=torch.float64)
    for step in steps:
        norm.move(step, weight)
    by_torch()
    for step in steps:
        other.move(step, weight)
    torch.testing.assert_close(norm.state_dict(), other.state_dict(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["prepbn", "ldfn"])
@pytest.mark.parametrize("progress", [0.0, 1.0])
def test_both_ends_of_annealing(name, progress, by_torch):
    """At the first the other norm only watches, and has gradients all the same: 0."""
    xs = batches((3, 5, 6), 3)
    norm = layer(name, 6, progress=progress)
    other = copy.deepcopy(norm)
    if progress == 0:
        y, _, grads = run(copy.deepcopy(norm), xs[0])
        assert torch.equal(y, F.layer_norm(xs[0], (6,), norm.ln_weight, norm.ln_bias, norm.ln_eps))
        assert grads.keys() == dict(norm.named_parameters()).keys()
        assert all(grad.any() == key.startswith("ln_") for key, grad in grads.items())
    found = history(norm, xs)
    by_torch()
    torch.testing.assert_close(found, history(other, xs), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NORMS)
def test_threads_do_not_change_a_bit(name):
    x = batches((3, 600, 40), 1, torch.float32)[0]
    norms = [layer(name, 40, torch.float32) for _ in range(2)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run(norms[0], x)
        torch.set_num_threads(3)
        three = run(norms[1], x)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(one, three, rtol=0, atol=0)
    torch.testing.assert_close(norms[0].state_dict(), norms[1].state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bn", "in", "gn", "repbn", "sn"])
def test_many_tokens_far_from_0(name):
    """25,000 tokens of mean 1e3, deviation 1, float32: no worse than twice nn.LayerNorm; torch's bn is 20 times worse."""
    x = 1e3 + torch.randn(8, 3136, 16, generator=torch.Generator().manual_seed(0))
    options = {"eta": 0.0} if name == "repbn" else {}
    norm, exact = (create_norm(name, 16, heads=4, dtype=dtype, **options) for dtype in (torch.float32, torch.float64))
    error = (norm(x) - exact(x.double())).abs().max()
    assert error <= 2 * (F.layer_norm(x, (16,)) - F.layer_norm(x.double(), (16,))).abs().max()


@pytest.mark.parametrize("name", ["bn", "zscore"])
def test_a_broken_step_is_counted_and_moves_nothing(name):
    norm = layer(name, 6)
    before = copy.deepcopy(norm.state_dict())
    x = batches((3, 5, 6), 1)[0]
    x[0, 0, 0] = float("nan")
    norm(x)
    assert norm.state_dict().pop("skipped_steps") == 1
    torch.testing.assert_close({**norm.state_dict(), "skipped_steps": before["skipped_steps"]}, before)


@pytest.mark.parametrize("name", NORMS)
def test_many_gradients_at_once(name):
    norm, x = layer(name, 6), batches((2, 4, 6), 1)[0].requires_grad_()
    y, several = norm(x), torch.randn(3, 2, 4, 6, dtype=torch.float64)
    inputs = [x, *norm.parameters()]
    together = torch.autograd.grad(y, inputs, several, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, inputs, each, retain_graph=True) for each in several]
    torch.testing.assert_close(list(together), [torch.stack(parts) for parts in zip(*one_by_one, strict=True)])


def test_short_memory_is_an_error(monkeypatch):
    monkeypatch.setattr(native, "_function", lambda entry, dtype: lambda *_: 1)
    with pytest.raises(MemoryError, match=r"standardised_forward.*\(3, 5, 6\)"):
        layer("bn", 6)(batches((3, 5, 6), 1)[0])
    with pytest.raises(MemoryError, match="6 channels"):
        native.run_on_channels("line_move", torch.zeros(6))


# --------------------------------------------------------------------------------------------------- the library


@pytest.fixture
def unloaded(monkeypatch, tmp_path):
    """As in a new process with an empty cache."""
    monkeypatch.setenv("DYNAVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DYNAVIT_NATIVE", raising=False)
    for cached in (build.load_passes, native._function):
        cached.cache_clear()
    yield tmp_path / "cache"
    for cached in (build.load_passes, native._function):
        cached.cache_clear()


def test_without_a_compiler_torch_does_the_work(unloaded, monkeypatch):
    monkeypatch.setenv("CC", "false")
    x = batches((3, 5, 6), 1)[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [layer("bn", 6)(x) for _ in range(2)]
    (warning,) = caught
    assert warning.category is RuntimeWarning and "torch does the work: false could not build" in str(warning.message)
    theirs = nn.BatchNorm1d(6, dtype=torch.float64)
    theirs.load_state_dict(layer("bn", 6).state_dict(), strict=False)
    torch.testing.assert_close(found[0], theirs(x.mT).mT)
    assert not build.passes_available() and not list(unloaded.iterdir())


def test_native_code_can_be_switched_off(unloaded, monkeypatch):
    monkeypatch.setenv("DYNAVIT_NATIVE", "0")
    assert build.load_passes() is None and not unloaded.exists()


def test_a_library_that_was_cut_off_is_built_again(unloaded, monkeypatch):
    """It is not opened: that would kill the process."""
    built, opened = [], []

    def pretended(library: NativeLibrary, compiler: str, folder: Path) -> Path:
        built.append(compiler)
        (folder / "passes.so").write_text("whole")
        return folder / "passes.so"

    monkeypatch.setattr(NativeLibrary, "build", pretended)
    monkeypatch.setattr(native_library.ctypes, "CDLL", lambda path: opened.append(Path(path).read_text()) or path)
    library = Path(str(build.load_passes()))
    library.write_text("who")
    build.load_passes.cache_clear()
    assert Path(str(build.load_passes())) == library
    build.load_passes.cache_clear()
    build.load_passes()
    assert len(built) == 2 and opened == ["whole"] * 3 and list(unloaded.iterdir()) == [library]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compilers_have_nothing_to_say(compiler, unloaded, monkeypatch):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(native_library, "FLAGS", [*native_library.FLAGS, "-Wall", "-Wextra", "-Werror"])
    assert isinstance(build.load_passes(), ctypes.CDLL)


@pytest.mark.skipif(shutil.which("clang-format") is None, reason="clang-format is not installed")
def test_the_source_is_formatted():
    checked = subprocess.run(["clang-format", "--dry-run", "--Werror", *SOURCES], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
