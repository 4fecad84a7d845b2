"""TF32 in triton's interpreter, which by itself ignores `input_precision` and multiplies in float32."""

from typing import Any

import numpy as np


def rounded(a: np.ndarray) -> np.ndarray:
    """float32 -> the nearest number with 10 bits of mantissa, ties away from zero, as cvt.rna.tf32.f32."""
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def emulate(monkeypatch: Any) -> None:
    """`tf32` multiplies rounded numbers; `tf32x3` adds the products with what rounding left, as the compiler does."""
    from triton.runtime import interpreter

    plain = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any) -> Any:
        name = getattr(precision, "name", str(precision)).lower()
        if a.data.dtype != np.float32 or "tf32" not in name:
            return plain(self, a, b, d, precision, *rest)
        first, second = rounded(a.data), rounded(b.data)
        out = np.matmul(first, second)
        if "x3" in name:
            out = np.matmul(rounded(a.data - first), second) + np.matmul(first, rounded(b.data - second)) + out
        return interpreter.TensorHandle(out + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
