"""The payloads: deterministic, for every level, described, and refused if wrong."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.native.host import host_architecture, host_level
from accy_async.artifact.native.loader import load_machine_code
from accy_async.artifact.native.signature import SignatureTable, encode_signatures
from accy_async.compiler.emit import compile_cpu, emit_cpu_assembly, emit_llvm_ir
from accy_async.compiler.emit.llvm import emit_object
from accy_async.compiler.emit.target import LEVELS, cpu_target
from accy_async.compiler.form import (
    Expression,
    Kernel,
    KernelBuilder,
    Name,
    constant,
    maximum,
    minimum,
    select,
)
from accy_async.compiler.kernels import TILE, add, block_scan
from accy_async.compiler.kernels.catalogue import (
    cpu_registry,
    library_entries,
    library_kernels,
)
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    CompilationError,
    InvalidType,
    InvalidValue,
    UnsupportedOperation,
)
from tests.compiler.harness import (
    Array,
    assert_same_bits,
    compiled,
    elementwise,
    samples,
)

ADD, SCAN = add(DType.F32).kernel, block_scan(DType.F32).kernel

_DIGEST = """
import hashlib
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.kernels import add, block_scan
from accy_async.dtypes import DType
kernels = [add(DType.F32).kernel, block_scan(DType.F32).kernel]
for format in ("cpu_object", "cpu_machine_code"):
    payload = compile_cpu(kernels, format=format)
    print(hashlib.sha256(payload).hexdigest())
"""


def test_bytes_are_the_same_in_every_process() -> None:
    here = [
        hashlib.sha256(compile_cpu([ADD, SCAN], format=format)).hexdigest()
        for format in ("cpu_object", "cpu_machine_code")
    ]
    for seed in ("1", "2"):
        other = subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            check=True,
            text=True,
        )
        assert other.stdout.split() == here


def test_bytes_are_the_same_from_several_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        payloads = pool.map(lambda _: compile_cpu([ADD], format="cpu_object"), range(8))
        assert len(set(payloads)) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_gets_an_object_of_its_architecture(level: str) -> None:
    payload = compile_cpu([ADD, SCAN], format="cpu_object", level=level)
    assert payload[:4] == b"\x7fELF"
    machine = int.from_bytes(payload[18:20], "little")
    assert machine == {"x86_64": 62, "aarch64": 183}[cpu_target(level).architecture]
    table = emit_llvm_ir([ADD, SCAN], level=level)
    assert f'"target-cpu"="{cpu_target(level).cpu}"' in table
    assert level.encode() in payload


def test_elementwise_regions_are_vectorised_without_overlap_checks() -> None:
    optimised = emit_llvm_ir([ADD], level="x86-64-v3", optimised=True)
    assert "<8 x float>" in optimised
    assert "memcheck" not in optimised
    assert "vaddps" in emit_cpu_assembly([ADD], level="x86-64-v3")


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16, DType.U8], ids=str)
def test_library_calls_no_function(dtype: DType) -> None:
    kernels = [library.kernel for library in library_kernels(dtype)]
    text = emit_cpu_assembly(kernels, level="x86-64-v2")
    assert "call" not in text
    assert "@PLT" not in text
    assert "@GOT" not in text


def test_object_carries_its_signatures() -> None:
    payload = compile_cpu([ADD], format="cpu_object")
    table = SignatureTable(host_architecture(), host_level(), (ADD.signature,))
    assert encode_signatures(table) in payload


def test_wrong_requests_are_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match=r"format.*cuda_ptx"):
        compile_cpu([ADD], format="cuda_ptx")
    with pytest.raises(InvalidValue, match=r"level.*x86-64-v9"):
        compile_cpu([ADD], format="cpu_object", level="x86-64-v9")
    with pytest.raises(InvalidValue, match="at least one kernel"):
        compile_cpu([], format="cpu_object")
    with pytest.raises(InvalidValue, match=r"kernels\[1\]\.name.*accy_add_f32"):
        compile_cpu([ADD, ADD], format="cpu_object")
    with pytest.raises(InvalidType, match=r"kernels\[0\]"):
        compile_cpu(["add"], format="cpu_object")  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["expf", "memset", "accy_kernel_signatures"])
def test_names_that_code_refers_to_are_refused(name: str) -> None:
    kernel = Kernel(name, (), (), (1, 1, 1), ())
    with pytest.raises(InvalidValue, match=name):
        compile_cpu([kernel], format="cpu_object")


@pytest.mark.parametrize("text", ["nonsense", "define i32 @f() { ret float 0.0 }"])
def test_text_that_llvm_refuses_is_an_error_not_an_abort(text: str) -> None:
    with pytest.raises(CompilationError, match="LLVM refused"):
        emit_object(text, cpu_target("x86-64-v2"))


def test_largest_kernel_compiles_and_runs() -> None:
    k = KernelBuilder("large", threadgroup=(1024, 1, 1))
    out = k.buffer("out", DType.U64, "write_only")
    shared = k.shared("shared", DType.U8, 48 * 1024)
    kept = [k.thread_variable(f"v{i}", DType.U64) for i in range(32)]
    with k.region():
        shared[k.thread] = k.thread.cast(DType.U8)
        for index, variable in enumerate(kept):
            variable.set(k.thread.cast(DType.U64) + index)
    with k.region():
        total = k.let("first", shared[k.thread].cast(DType.U64))
        for variable in kept:
            total = total + variable.value
        out[k.thread] = total
    result = np.zeros(1024, np.uint64)
    with compiled(k.build()) as runner:
        runner.run("large", [result])
    ids = np.arange(1024, dtype=np.uint64)
    np.testing.assert_array_equal(result, ids % 256 + 32 * ids + 496)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_library_entries_load_and_derive_their_grid(dtype: DType) -> None:
    for library, entry in zip(
        library_kernels(dtype), library_entries(dtype=dtype), strict=True
    ):
        assert entry.target == library.target
        assert entry.entry_name == library.kernel.name
        assert isinstance(entry.payload, bytes)
        loaded = load_machine_code(entry.payload, entry.entry_name)
        assert loaded.signature == library.kernel.signature
        loaded.close()
        count = [ScalarArgument.u32(TILE * 3 + 1)]
        geometry = entry.launch.geometry(count)
        assert isinstance(geometry, FixedLaunch)
        single = library.elements_per_block is None
        assert geometry.grid == ((1, 1, 1) if single else (4, 1, 1))
        assert geometry.threadgroup == library.kernel.threadgroup
        assert entry.buffer_argument_count == len(library.kernel.buffers)


def test_registry_holds_what_was_asked_for_and_refuses_the_rest() -> None:
    target = "accy.kernel.add"
    registry = cpu_registry("cpu_object", dtype=DType.I32, targets=[target])
    assert [entry.target for entry in registry] == [target]
    again = cpu_registry("cpu_object", dtype=DType.I32, targets=[target])
    assert registry.entries[0] is again.entries[0]
    with pytest.raises(InvalidValue, match=r"targets.*accy\.kernel\.gone"):
        library_entries(targets=["accy.kernel.gone"])
    with pytest.raises(InvalidValue, match=r"targets.*block_scan"):
        library_entries(dtype=DType.BOOL, targets=["accy.kernel.scan.block_scan"])
    with pytest.raises(UnsupportedOperation, match="cuda_cubin"):
        library_entries(ArtifactFormat.CUDA_CUBIN)
    with pytest.raises(UnsupportedOperation, match="cuda_ptx is no format of cpu"):
        cpu_registry(ArtifactFormat.CUDA_PTX)


Pair = tuple[Expression, Array]


def _grow(dtype: DType, pairs: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    kind = dtype.numpy.type
    operations: dict[str, tuple[Any, Any]] = {
        "add": (lambda a, b: a + b, lambda a, b: a + b),
        "sub": (lambda a, b: a - b, lambda a, b: a - b),
        "mul": (lambda a, b: a * b, lambda a, b: a * b),
        "scale": (lambda a, b: a * 3 + b, lambda a, b: a * kind(3) + b),
        "pick": (
            lambda a, b: select(a < b, b, a - 1),
            lambda a, b: np.where(a < b, b, a - kind(1)),
        ),
        "abs": (lambda a, b: abs(a) - b, lambda a, b: np.abs(a) - b),
    }
    if dtype.is_integer:
        operations["min"] = (minimum, np.minimum)
        operations["max"] = (maximum, np.maximum)
        operations["xor"] = (lambda a, b: a ^ ~b, lambda a, b: a ^ ~b)
    else:
        operations["div"] = (lambda a, b: a / b, lambda a, b: a / b)

    def apply(name: str, left: Pair, right: Pair) -> Pair:
        ours, numpys = operations[name]
        with np.errstate(all="ignore"):
            return ours(left[0], right[0]), numpys(left[1], right[1])

    return st.builds(apply, st.sampled_from(sorted(operations)), pairs, pairs)


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.U16], ids=str)
def test_random_expressions_are_numpys_to_the_bit(dtype: DType) -> None:
    check_random_expressions(dtype)


def check_random_expressions(
    dtype: DType, *, constants: bool = True, examples: int = 25
) -> None:
    """Compare what expressions of two inputs, and a constant, compute."""
    inputs = samples(dtype, 60), samples(dtype, 60)[::-1].copy()
    leaves: list[tuple[str | int, Array]] = [
        (f"in{i}", values) for i, values in enumerate(inputs)
    ]
    if constants:
        leaves.append((3, np.full_like(inputs[0], 3)))
    start = st.sampled_from(leaves)

    def leaf(given_leaf: tuple[str | int, Array]) -> Pair:
        named, values = given_leaf
        if isinstance(named, int):
            return constant(dtype, named), values
        return Name(f"value_{named}", dtype), values

    pairs = st.recursive(start.map(leaf), lambda p: _grow(dtype, p), max_leaves=12)

    every_check = list(HealthCheck)

    @settings(max_examples=examples, deadline=None, suppress_health_check=every_check)
    @given(pairs)
    def check(pair: Pair) -> None:
        expression, expected = pair

        k = KernelBuilder("random", threadgroup=(32, 1, 1))
        out = k.buffer("out", dtype, "write_only")
        sources = [k.buffer(f"in{i}", dtype, "read_only") for i in range(2)]
        n = k.scalar("n", DType.U32)
        base = k.block_x * 32
        with k.region(limit=n.cast(DType.I64) - base.cast(DType.I64)):
            for source in sources:
                k.let(f"value_{source.name}", source.at(base + k.thread))
            out[base + k.thread] = expression
        result = np.zeros_like(inputs[0])
        with compiled(k.build()) as runner:
            runner.run(
                "random", [result, *inputs], [len(result)], -(-len(result) // 32)
            )
        assert_same_bits(result, expected)

    check()


def test_products_are_rounded_before_they_are_added() -> None:
    """No fused multiply-add: it would round once where the form rounds twice."""
    kernel = elementwise("mad", [DType.F32] * 3, DType.F32, lambda a, b, c: a * b + c)
    a = np.float32(1) + np.arange(64, dtype=np.float32) * np.float32(2**-23)
    c = -(a * a)
    out = np.ones_like(a)
    with compiled(kernel) as runner:
        runner.run("mad", [out, a, a, c], [64])
    np.testing.assert_array_equal(out, np.zeros(64, np.float32))
