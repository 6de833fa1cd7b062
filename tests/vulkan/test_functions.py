"""The functions that GLSL gets from us: exact ones to the bit, others within bounds."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.form import sqrt
from accy_async.dtypes import DType
from tests.compiler.harness import Array, assert_same_bits, elementwise, samples
from tests.vulkan.harness import VulkanRunner

pytestmark = pytest.mark.vulkan

F32 = DType.F32
COUNT = 1 << 19


def _bits(seed: int) -> Array:
    """Floats of random bits, edge values among them."""
    raw = np.random.default_rng(seed).integers(0, 2**32, COUNT, np.uint32)
    return np.concatenate([raw.view(np.float32), samples(F32)])


def _near_one(seed: int) -> Array:
    return 1 + np.random.default_rng(seed).integers(0, 2**12, COUNT).astype(
        np.float32
    ) * np.float32(2**-23)


def _small(seed: int) -> Array:
    """Floats whose quotients are subnormal, or near the ends of the exponents."""
    random = np.random.default_rng(seed)
    return np.ldexp(
        random.uniform(1, 2, COUNT).astype(np.float32),
        random.integers(-149, -60, COUNT),
    ).astype(np.float32)


@pytest.mark.parametrize("units", [0, -2.5, 2.5])
def test_division_is_correctly_rounded_however_rough_the_guess(units: float) -> None:
    """Vulkan lets the device's own quotient be 2.5 units off."""
    kernel = elementwise("div", [F32] * 2, F32, lambda a, b: a / b, 256)
    rough = f"(float(m) / float(n)) * {1 + units * 2**-23!r}"
    edit = (
        (lambda text: text.replace("(float(m) / float(n))", rough)) if units else None
    )
    runner = VulkanRunner([kernel], edit)
    pairs = [(_bits(1), _bits(2)), (_near_one(3), _near_one(4))]
    pairs.append((_small(5), np.ldexp(_near_one(6), 20).astype(np.float32)))
    for a, b in pairs:
        out = np.zeros_like(a)
        runner.run("div", [out, a, b], [len(a)], -(-len(a) // 256))
        with np.errstate(all="ignore"):
            assert_same_bits(out, a / b)


@pytest.mark.parametrize("units", [0, -4.5, 4.5])
def test_roots_are_correctly_rounded_however_rough_the_guess(units: float) -> None:
    """Vulkan lets the device's own root be 4.5 units off."""
    kernel = elementwise("root", [F32], F32, sqrt, 256)
    guess = "sqrt(float(m) * 33554432.0)"
    rough = f"({guess} * {1 + units * 2**-23!r})"
    edit = (lambda text: text.replace(guess, rough)) if units else None
    runner = VulkanRunner([kernel], edit)
    for a in (_bits(1), _near_one(2), _near_one(3) * 2, _near_one(4) ** 2):
        out = np.zeros_like(a)
        runner.run("root", [out, a], [len(a)], -(-len(a) // 256))
        with np.errstate(all="ignore"):
            assert_same_bits(out, np.sqrt(a))
