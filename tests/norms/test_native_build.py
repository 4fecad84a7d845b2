"""The C kernel is built at first use and kept in a cache; where it cannot be built, torch does the work."""

import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import dynavit.norms.dtn.native.build as build
import dynavit.norms.native_library as native_library
from dynavit.norms.dtn.native.build import KERNEL
from dynavit.norms.native_library import NativeLibrary
from norms.dtn_cases import assert_close, expect, layer, run, tokens


@pytest.fixture
def unloaded(monkeypatch, tmp_path):
    """As in a new process with an empty cache: nothing is loaded, nothing was warned about."""
    monkeypatch.setenv("DYNAVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DYNAVIT_NATIVE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    build.load_kernel.cache_clear()
    yield tmp_path / "cache"
    build.load_kernel.cache_clear()


def check_layer() -> list[str]:
    """A layer gives the right numbers, twice; the warnings on the way."""
    norm, x = layer(10, 2), tokens(2, 20, 10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert_close(run(norm, x, grid=(4, 5)), expect(norm, x, (4, 5)), 1e-11)
    assert all(issubclass(warning.category, RuntimeWarning) for warning in caught)
    return [str(warning.message) for warning in caught]


# --------------------------------------------------------------------------------------------- where it cannot


def test_a_failing_compiler_warns_once_and_torch_does_the_work(unloaded, monkeypatch):
    """One RuntimeWarning that names the compiler and the file; right numbers; nothing half made stays behind."""
    monkeypatch.setenv("CC", "false")
    (message,) = check_layer()
    assert "torch does the work" in message and "false could not build DTN's C kernel" in message
    assert not build.native_kernel_available()
    assert list(unloaded.iterdir()) == []


def test_the_compilers_own_words_are_shown(unloaded, monkeypatch, tmp_path):
    """The warning holds the end of its stderr, which is what a user needs."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'dtn.c:1: no such instruction' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.warns(RuntimeWarning, match="dtn.c:1: no such instruction"):
        assert build.load_kernel() is None


def test_no_compiler_at_all(unloaded, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.warns(RuntimeWarning, match=r"no C compiler \(gcc, cc or clang\) was found"):
        assert build.load_kernel() is None


def test_a_compiler_that_does_not_exist(unloaded, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.warns(RuntimeWarning, match="no-such-compiler could not build"):
        assert build.load_kernel() is None


@pytest.fixture
def pretended(monkeypatch):
    """A compiler that writes a text, and a loader that says what it opened."""
    compiler, opened = PretendedCompiler(), []
    monkeypatch.setattr(native_library.subprocess, "run", compiler)
    monkeypatch.setattr(native_library.ctypes, "CDLL", lambda path: opened.append(Path(path).read_text()) or path)
    return compiler, opened


def homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("how", ["a file in the place of the folder", "no home"])
def test_a_cache_that_cannot_be_written(unloaded, monkeypatch, pretended, how):
    """The library is built for this process alone, with a word about it, and nothing stays behind. Containers run under user
    ids without a home directory."""
    if how == "no home":
        monkeypatch.delenv("DYNAVIT_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(native_library.Path, "home", homeless)
    else:
        unloaded.write_text("")
    with pytest.warns(RuntimeWarning, match=r"built anew by each process \(.*(home|exists).*\); set DYNAVIT_CACHE") as caught:
        private = build.load_kernel()
    assert pretended[1] == ["library"] and len(caught) == 1
    assert not Path(private).parent.exists()


def test_a_cache_that_can_only_be_read(unloaded, monkeypatch, pretended):
    """As in an image that was built with the library inside."""
    compiler, opened = pretended
    build.load_kernel()
    monkeypatch.setattr(native_library.tempfile, "TemporaryDirectory", lambda **_: pytest.fail("nothing can be written"))
    build.load_kernel.cache_clear()
    assert build.load_kernel() and len(compiler.calls) == 1 and len(opened) == 2


@pytest.mark.parametrize("damage", [b"", b"libra", b"library of somebody else"])
def test_a_library_that_is_not_as_it_was_built_is_built_again(unloaded, pretended, damage):
    """It is not opened: a shared library that was cut off kills the process."""
    compiler, opened = pretended
    (library,) = [Path(build.load_kernel())]
    library.write_bytes(damage)
    build.load_kernel.cache_clear()
    assert Path(build.load_kernel()) == library
    assert opened == ["library", "library"] and len(compiler.calls) == 2
    assert list(unloaded.iterdir()) == [library]


def test_a_library_from_before_checksums_is_left_alone(unloaded, pretended):
    unloaded.mkdir()
    old = unloaded / f"dtn-{KERNEL.key('gcc')}.so"
    old.write_bytes(b"")
    assert build.load_kernel() and pretended[1] == ["library"]
    assert old.exists()


def test_another_process_was_faster(unloaded, monkeypatch, pretended):
    plain = NativeLibrary.build

    def build_late(library, name, folder):
        with monkeypatch.context() as patch:
            patch.setattr(NativeLibrary, "build", plain)
            other.append(library.compiled(name))
        return plain(library, name, folder)

    other: list[Path] = []
    monkeypatch.setattr(NativeLibrary, "build", build_late)
    assert Path(build.load_kernel()) == other[0]
    assert list(unloaded.iterdir()) == other


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("gcc 'unclosed", "No closing quotation"),
        ("/", "could not build"),
        ("true", "left no library"),
        ("sh -c 'printf \\351 >&2; exit 1'", "could not build"),  # not UTF-8
    ],
)
def test_odd_compilers(unloaded, monkeypatch, compiler, said):
    monkeypatch.setenv("CC", compiler)
    with pytest.warns(RuntimeWarning, match=said):
        assert build.load_kernel() is None
    assert not unloaded.exists() or list(unloaded.iterdir()) == []


@pytest.mark.parametrize("nothing", ["", "   "])
def test_an_empty_name_of_a_compiler_is_none(unloaded, monkeypatch, pretended, nothing):
    monkeypatch.setenv("CC", nothing)
    assert build.load_kernel()
    assert pretended[0].calls[0][0] in ("gcc", "cc", "clang")


def test_a_compiler_that_makes_no_library(unloaded, monkeypatch):
    """It is not kept, or a better compiler of the same name would never be asked."""
    monkeypatch.setattr(native_library.subprocess, "run", PretendedCompiler())
    with pytest.warns(RuntimeWarning, match="could not build"):
        assert build.load_kernel() is None
    assert list(unloaded.iterdir()) == []


def test_a_damaged_library_is_refused_not_run(unloaded, monkeypatch):
    """A file in the cache that is no library: a warning, and torch does the work."""
    monkeypatch.setattr(NativeLibrary, "compiled", lambda *_: unloaded / "damaged.so")
    unloaded.mkdir()
    (unloaded / "damaged.so").write_text("not a library")
    (message,) = check_layer()
    assert "damaged.so" in message


def test_switched_off(unloaded, monkeypatch):
    """DYNAVIT_NATIVE=0: no compiler is called, no warning is given, the numbers are the same."""
    monkeypatch.setenv("DYNAVIT_NATIVE", "0")
    monkeypatch.setattr(NativeLibrary, "compiled", lambda *_: pytest.fail("nothing may be compiled"))
    assert check_layer() == []
    assert not build.native_kernel_available()
    assert not unloaded.exists()


def test_cache_folder(monkeypatch, tmp_path):
    """DYNAVIT_CACHE, else the user's cache."""
    monkeypatch.setenv("DYNAVIT_CACHE", str(tmp_path))
    assert native_library._cache_folder() == tmp_path
    monkeypatch.delenv("DYNAVIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert native_library._cache_folder() == tmp_path / "xdg" / "dynavit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert native_library._cache_folder() == tmp_path / "home" / ".cache" / "dynavit"


class PretendedCompiler:
    """Stands for subprocess.run. Keeps the commands that would have compiled something."""

    def __init__(self, version: str = "1.0", knows_openmp: bool = True) -> None:
        self.version, self.knows_openmp, self.calls = version, knows_openmp, []

    def __call__(self, command, **_):
        if "--version" in command:
            return subprocess.CompletedProcess(command, 0, stdout=self.version)
        self.calls.append(command)
        if "-fopenmp" in command and not self.knows_openmp:
            raise subprocess.CalledProcessError(1, command, stderr="unsupported option '-fopenmp'")
        Path(command[command.index("-o") + 1]).write_text("library")
        return subprocess.CompletedProcess(command, 0, stdout="")


def test_the_name_depends_on_everything_that_matters(unloaded, monkeypatch):
    """Each source and its name, flags, compiler, its version and the processor: a library is never used for another."""
    compiler = PretendedCompiler()
    monkeypatch.setattr(native_library.subprocess, "run", compiler)
    first = KERNEL.compiled("gcc")
    assert KERNEL.compiled("gcc") == first and len(compiler.calls) == 1, "the second time it is there"
    names = {first}
    names.add(KERNEL.compiled("clang"))
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "version", "1.1")
        names.add(KERNEL.compiled("gcc"))
    with monkeypatch.context() as patch:
        patch.setattr(native_library, "FLAGS", ["-O2"])
        names.add(KERNEL.compiled("gcc"))
    with monkeypatch.context() as patch:
        patch.setattr(native_library, "_processor", lambda: "flags: none")
        names.add(KERNEL.compiled("gcc"))
    sources = [path for path in KERNEL.sources.iterdir() if path.suffix in (".c", ".h")]
    assert len(sources) > 10
    plain = Path.read_text
    for changed in sources:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda path, changed=changed: plain(path) + "/* */" * (path == changed))
            names.add(KERNEL.compiled("gcc"))
    assert len(names) == len(compiler.calls) == 5 + len(sources)
    assert set(unloaded.iterdir()) == names, "libraries and nothing else"
    assert {path.stem.rpartition("-")[2] for path in names} == {hashlib.sha256(b"library").hexdigest()}


def test_a_compiler_with_arguments_and_one_without_openmp(unloaded, monkeypatch):
    """CC="ccache gcc" is two words; where -fopenmp fails the library is built without."""
    compiler = PretendedCompiler(knows_openmp=False)
    monkeypatch.setattr(native_library.subprocess, "run", compiler)
    assert KERNEL.compiled("ccache gcc").exists()
    assert [command[:2] for command in compiler.calls] == [["ccache", "gcc"]] * 2
    assert ["-fopenmp" in command for command in compiler.calls] == [True, False]


def test_the_choice_of_the_compiler(unloaded, monkeypatch, tmp_path):
    """CC, else the first of gcc, cc and clang that is there."""
    chosen = []
    monkeypatch.setattr(NativeLibrary, "compiled", lambda _, compiler: chosen.append(compiler) or tmp_path / "none.so")
    for there in (["clang"], ["cc", "clang"], ["gcc", "cc", "clang"]):
        monkeypatch.setattr(native_library.shutil, "which", lambda name, there=there: name if name in there else None)
        build.load_kernel.cache_clear()
        with pytest.warns(RuntimeWarning, match="could not build"):
            build.load_kernel()
    monkeypatch.setenv("CC", "tcc -v")
    build.load_kernel.cache_clear()
    with pytest.warns(RuntimeWarning, match="could not build"):
        build.load_kernel()
    assert chosen == ["clang", "cc", "gcc", "tcc -v"]


# ------------------------------------------------------------------------------------------------- where it can


@pytest.mark.slow
def test_builds_once_and_leaves_no_temporary_files(unloaded):
    """The first use compiles into the cache; a later process finds the library."""
    assert check_layer() == [] and build.native_kernel_available()
    (library,) = unloaded.iterdir()
    made = library.stat().st_mtime_ns
    build.load_kernel.cache_clear()
    assert check_layer() == [] and build.native_kernel_available()
    assert [*unloaded.iterdir()] == [library] and library.stat().st_mtime_ns == made


@pytest.mark.slow
def test_without_openmp_the_numbers_are_the_same(unloaded, monkeypatch, tmp_path):
    """A compiler that knows no -fopenmp gives a library of one thread, whatever number is asked for."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nfor word; do [ "$word" = -fopenmp ] && exit 1; done\nexec gcc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert check_layer() == [] and build.native_kernel_available()
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_two_processes_at_once(tmp_path):
    """Both build, both load what they find, one library stays."""
    script = f"""
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("native_library", {native_library.__file__!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.NativeLibrary("dtn", pathlib.Path({str(KERNEL.sources)!r}), "DTN").load().dtn_forward_f32
"""
    environment = {**os.environ, "DYNAVIT_CACHE": str(tmp_path)}
    environment.pop("DYNAVIT_NATIVE", None)
    running = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_torch_and_the_kernel_share_their_threads():
    """Two runtimes of OpenMP would each keep threads that wait by spinning, and take the cores from one another."""
    layer(6, 2)(tokens(1, 4, 6))
    assert build.native_kernel_available()
    runtimes = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    assert len(runtimes) <= 1, runtimes
