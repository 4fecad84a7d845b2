"""benchmarks/serve/simulate.py, which is a script, as a module."""

import importlib.util
import sys
from pathlib import Path

_FILE = Path(__file__).parents[3] / "benchmarks" / "serve" / "simulate.py"
_spec = importlib.util.spec_from_file_location("serve_simulate", _FILE)
simulate = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = simulate  # dataclasses look their module up
_spec.loader.exec_module(simulate)
