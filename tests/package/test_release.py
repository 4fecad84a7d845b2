"""Facts about a release stand in several files and agree."""

import re
import tomllib

import yaml
from packaging.version import Version

from documents import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_one_version():
    version = PROJECT["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert CITATION["version"] == version


def test_licences():
    """The digits in the package have a licence of their own."""
    assert PROJECT["project"]["license"] == "Apache-2.0 AND CC-BY-4.0"
    assert CITATION["license"] == ["Apache-2.0", "CC-BY-4.0"]
    assert "CC BY 4.0" in (ROOT / "src" / "dynavit" / "data" / "digits.txt").read_text()
    for name in PROJECT["project"]["license-files"]:
        assert (ROOT / name).is_file()


def pins(name: str) -> dict[str, str]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    return {normal(package): version for package, _, version in (line.partition("==") for line in lines)}


def normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def test_oldest_versions_are_the_lower_bounds():
    """But for torch, whose older builds could not be had. Tests may ask for more than users need: the higher bound counts."""
    project = PROJECT["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    oldest = pins("constraints-oldest.txt")
    bounds: dict[str, str] = {}
    for group, requirements in groups.items():
        if group in ("data", "ray", "track"):  # `make test` installs them neither
            continue
        for requirement in requirements:
            package, bound = re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()
            bounds[package] = max(bounds.get(package, "0"), bound, key=Version)
    del bounds["torch"]
    assert {package: bound for package, bound in bounds.items() if not starts_with(oldest[normal(package)], bound)} == {}
    assert oldest["torch"] == pins("constraints.txt")["torch"]


def starts_with(version: str, bound: str) -> bool:
    """1.2.0 and 1.2.3 are the oldest of >=1.2; where 1.2.0 was no release for Python 3.11, the next one is.

    >>> starts_with("1.2.3", "1.2"), starts_with("1.3.0", "1.2"), starts_with("1.20", "1.2")
    (True, False, False)
    """
    return version.split(".")[: bound.count(".") + 1] == bound.split(".")
