"""PTX as text: deterministic, with its barriers, and nothing fused.

What it computes is tested on a GPU, in tests/kernels.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat
from accy_async.compiler.emit import compile_ptx, emit_ptx_llvm_ir
from accy_async.compiler.emit.barriers import plan_barriers
from accy_async.compiler.form import (
    Binary,
    BinaryOperation,
    For,
    If,
    Kernel,
    KernelBuilder,
    Region,
    Unary,
    UnaryOperation,
    constant,
    exp,
    log,
    select,
    tanh,
)
from accy_async.compiler.form.operations import can_cast
from accy_async.compiler.kernels import add, sums_scan, tile_scan
from accy_async.compiler.kernels.catalogue import (
    cuda_registry,
    library_entries,
    library_kernels,
    library_registry,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue, UnsupportedOperation
from tests.compiler.harness import elementwise

U32, F32 = DType.U32, DType.F32
ADD, SCAN = add(F32).kernel, tile_scan(F32).kernel

_DIGEST = """
import hashlib
from accy_async.compiler.emit import compile_ptx
from accy_async.compiler.kernels import add, tile_scan
from accy_async.dtypes import DType
kernels = [add(DType.F32).kernel, tile_scan(DType.F32).kernel]
print(hashlib.sha256(compile_ptx(kernels).encode()).hexdigest())
"""


def entries(text: str) -> dict[str, list[str]]:
    """The entries of a module, and the types of each one's parameters."""
    found = {}
    for name, parameters in re.findall(
        r"\.visible \.entry (\w+)\((.*?)\)", text, re.DOTALL
    ):
        found[name] = re.findall(r"\.param \.(\w+)", parameters)
    return found


def every_operation() -> list[Kernel]:
    """Kernels of every operation and cast on every dtype it takes."""
    kernels = [
        elementwise(f"{op.name}_{dtype}", [dtype], dtype, lambda x, op=op: Unary(op, x))
        for dtype in DType
        for op in UnaryOperation
        if op.takes(dtype)
    ]
    kernels += [
        elementwise(
            f"{op.name}_{dtype}", [dtype] * 2, dtype, lambda x, y, o=op: Binary(o, x, y)
        )
        for dtype in DType
        for op in BinaryOperation
        if op.takes(dtype)
    ]
    kernels += [
        elementwise(f"{a}_to_{b}", [a], b, lambda x, b=b: x.cast(b))
        for a in DType
        for b in DType
        if can_cast(a, b)
    ]
    return kernels


def control_flow() -> list[Kernel]:
    """Kernels of every statement, in uniform code and in regions."""
    k = KernelBuilder("flow", threadgroup=(8, 4, 2))
    out = k.buffer("out", U32, "read_write")
    n, flag = k.scalar("n", U32), k.scalar("flag", DType.BOOL)
    shared = k.shared("shared", DType.F64, 64)
    kept, sure = k.thread_variable("kept", F32), k.thread_variable("sure", DType.BOOL)
    total = k.variable("total", constant(U32, 0))
    with k.count("i", constant(U32, 0), n, step=3) as i:
        with k.when(flag), k.region(limit=n.cast(DType.I16)):
            shared[k.thread] = (k.thread_z + i).cast(DType.F64)
        with k.otherwise(), k.region():
            k.require(kept.value < 7.5, 12)
            kept.set(kept.value + 1)
            sure.set(~sure.value)
        total.set(total.value + shared.at(i % 64).cast(U32))
    with k.region():
        best = k.variable("best", constant(U32, 0))
        with k.count("j", k.thread, n) as j:
            best.set(best.value + j)
        with k.when(sure.value):
            out[k.thread] = best.value + total.value
        with k.otherwise():
            out[k.thread] = select(flag, kept.value.cast(U32), k.grid_y)
    return [k.build(), Kernel("nothing", (), (), (1, 1, 1), ())]


def test_same_kernels_give_the_same_text_in_every_process() -> None:
    here = compile_ptx([ADD, SCAN])
    digest = hashlib.sha256(here.encode()).hexdigest()
    command = [sys.executable, "-c", _DIGEST]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == digest
    assert compile_ptx([ADD, SCAN]) == here


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_library_compiles_with_its_parameters_and_nothing_fused(dtype: DType) -> None:
    kernels = [library.kernel for library in library_kernels(dtype)]
    text = compile_ptx(kernels)
    assert ".target sm_80" in text
    assert ".version 7.0" in text
    found = entries(text)
    assert list(found) == [kernel.name for kernel in kernels]
    for kernel in kernels:
        parameters = found[kernel.name]
        assert parameters[: len(kernel.buffers)] == ["u64"] * len(kernel.buffers)
        sizes = [int(kind[1:]) // 8 for kind in parameters[len(kernel.buffers) :]]
        assert sizes == [scalar.dtype.size_bytes for scalar in kernel.scalars]
    assert not re.search(r"\bfma\b|\bmad\.(rn|f32|f64)|\.approx|\.ftz|call", text)
    # Without .rn the driver's compiler may fuse a product and a sum.
    assert not re.search(r"\b(add|sub|mul)\.f(32|64)", text)
    assert text.count(".reqntid 256, 1, 1") == len(kernels)


def test_division_and_root_are_correctly_rounded() -> None:
    kernels = [
        elementwise("divide", [F32] * 2, F32, lambda x, y: x / y),
        elementwise("root", [F32], F32, lambda x: Unary(UnaryOperation.SQRT, x)),
    ]
    text = compile_ptx(kernels)
    assert "div.rn.f32" in text
    assert "sqrt.rn.f32" in text


def test_only_exp_log_and_tanh_fuse_and_none_is_called() -> None:
    for function in (exp, log, tanh):
        for dtype in (F32, DType.F64):
            kernel = elementwise("f", [dtype], dtype, lambda x, f=function: f(x))
            text = compile_ptx([kernel])
            assert "fma.rn" in text
            assert "call" not in text
            assert ".approx" not in text


@pytest.mark.parametrize(
    ("target", "version", "said"),
    [
        ("sm_75", None, "6.3"),
        ("sm_80", None, "7.0"),
        ("sm_80", "8.0", "8.0"),
        ("sm_90", None, "7.8"),
        ("sm_90", "8.3", "8.3"),
        ("sm_100", None, "8.6"),
    ],
)
def test_target_and_version_are_those_asked_for(
    target: str, version: str | None, said: str
) -> None:
    text = compile_ptx([ADD], target=target, ptx_version=version)
    assert f".version {said}\n" in text
    assert f".target {target}\n" in text


def test_shared_arrays_are_the_blocks_and_thread_variables_are_registers() -> None:
    text = compile_ptx([SCAN])
    sizes = re.findall(r"\.shared \.align 16 \.b8 [\w$]+\[(\d+)\]", text)
    assert sorted(map(int, sizes)) == sorted(4 * s.length for s in SCAN.shared)
    assert ".local" not in compile_ptx(control_flow())


def test_barriers_stand_outside_branches_of_threads() -> None:
    """No barrier between a region's branch and the end of its body."""
    for kernel in (SCAN, sums_scan(F32).kernel, control_flow()[0]):
        ir = emit_ptx_llvm_ir([kernel])
        inside = False
        for line in ir.splitlines():
            if line.startswith("region."):
                inside = True
            elif line.startswith("after."):
                inside = False
            assert not (inside and "barrier" in line)
        assert "barrier" in ir


def _planned(kernel: Kernel) -> list[tuple[str, bool, bool]]:
    """Each statement of uniform code in order: barrier before it? within it?"""
    plan = plan_barriers(kernel)
    found: list[tuple[str, bool, bool]] = []

    def go(body: tuple[object, ...]) -> None:
        for statement in body:
            kind = type(statement).__name__
            before = id(statement) in plan.before
            found.append((kind, before, id(statement) in plan.within))
            if isinstance(statement, If):
                go(statement.then)
                go(statement.otherwise)
            elif isinstance(statement, For):
                go(statement.body)

    go(kernel.body)
    return found


def test_one_region_needs_no_barrier() -> None:
    assert "bar.sync" not in compile_ptx([ADD])
    assert not any(before or within for _, before, within in _planned(ADD))


def test_barrier_stands_between_a_write_and_a_read_of_one_array_only() -> None:
    k = KernelBuilder("arrays", threadgroup=(32, 1, 1))
    a, b = k.shared("a", U32, 32), k.shared("b", U32, 32)
    with k.region():
        a[k.thread] = k.thread
    with k.region():  # touches nothing of the first: no barrier
        b[k.thread] = k.thread
    with k.region():  # reads what the first wrote
        b[k.thread] = a.at(k.thread ^ 1)
    with k.region():  # only reads: met since
        k.let("x", a.at(k.thread))
    with k.region():  # writes what others may still read
        a[k.thread] = k.thread
    met = [within for kind, _, within in _planned(k.build()) if kind == "Region"]
    assert met == [False, False, True, False, True]


def test_a_warp_alone_meets_where_only_it_touched_what_it_touches() -> None:
    k = KernelBuilder("tree", threadgroup=(64, 1, 1))
    a = k.shared("a", U32, 64)
    out = k.buffer("out", U32, "write_only")

    def pair(half: int) -> None:
        with k.region(limit=constant(U32, half)):
            a[k.thread] = a[k.thread] + a[k.thread + half]

    with k.region():
        a[k.thread] = k.thread
    pair(32)  # reads what the other warp wrote
    pair(16)
    pair(8)
    with k.region():  # everybody reads what the first thread wrote
        out[k.thread] = a.at(constant(U32, 0))
    pair(4)  # the other warp may still read it
    kernel = k.build()
    plan = plan_barriers(kernel)
    regions = [s for s in kernel.body if isinstance(s, Region)]
    assert [plan.stands_within(r) for r in regions] == [False, *[True] * 5]
    assert [plan.is_of_a_warp(r) for r in regions] == [
        *(False, False, True, True),
        *(False, False),
    ]
    text = compile_ptx([kernel])
    assert text.count("bar.warp.sync") == 2
    assert text.count("bar.sync") == 3


def test_neighbours_are_accessed_at_once_where_buffers_begin_so() -> None:
    k = KernelBuilder("double", threadgroup=(64, 1, 1))
    out = k.buffer("out", F32, "write_only")
    given = k.buffer("given", F32, "read_only")
    with k.region():
        first = k.let("first", (k.block_x * 64 + k.thread) * 4)
        values = [given[first + i] for i in range(4)]
        for i, value in enumerate(values):
            out[first + i] = value + value
    assert ".v4" not in compile_ptx([k.build()])  # nothing says that they do
    k.takes_neighbours = True
    text = compile_ptx([k.build()])
    assert text.count("ld.global.v4.b32") == text.count("st.global.v4.b32") == 1
    assert text.count("ld.global.b32") == text.count("st.global.b32") == 4


def test_uniform_load_is_met_before_it_and_before_its_element_is_overwritten() -> None:
    k = KernelBuilder("relay", threadgroup=(32, 1, 1))
    a = k.shared("a", U32, 32)
    with k.region():
        a[k.thread] = k.thread
    total = k.let("total", a.at(constant(U32, 3)))
    with k.region():
        a[k.thread] = k.thread + total
    assert _planned(k.build()) == [
        ("Region", False, False),
        ("Let", True, False),
        ("Region", False, True),
    ]


def test_limit_that_the_region_overwrites_is_read_by_all_first() -> None:
    k = KernelBuilder("limit", threadgroup=(32, 1, 1))
    a = k.shared("a", U32, 32)
    with k.region():
        a[k.thread] = k.thread
    with k.region(limit=a.at(constant(U32, 9))):
        a[k.thread] = k.thread + 1
    assert _planned(k.build()) == [("Region", False, False), ("Region", True, True)]


def test_loop_meets_what_its_last_round_left() -> None:
    """The first region of a round follows the last one of the round before."""
    k = KernelBuilder("rounds", threadgroup=(32, 1, 1))
    a, b = k.shared("a", U32, 32), k.shared("b", U32, 32)
    with k.count("i", constant(U32, 0), k.scalar("n", U32)):
        with k.region():
            b[k.thread] = a.at(k.thread)
        with k.region():
            a[k.thread] = b.at(k.thread ^ 1)
    regions = [within for kind, _, within in _planned(k.build()) if kind == "Region"]
    assert regions == [True, True]


def test_branches_are_met_whichever_was_taken() -> None:
    k = KernelBuilder("either", threadgroup=(32, 1, 1))
    a, b = k.shared("a", U32, 32), k.shared("b", U32, 32)
    with k.when(k.scalar("flag", DType.BOOL)), k.region():
        a[k.thread] = k.thread
    with k.otherwise(), k.region():
        b[k.thread] = k.thread
    with k.region():
        k.let("x", b.at(k.thread))
    assert _planned(k.build())[-1] == ("Region", False, True)


def test_buffers_may_overlap_and_count_as_one_memory() -> None:
    k = KernelBuilder("overlap", threadgroup=(32, 1, 1))
    out, a = k.buffer("out", U32, "write_only"), k.buffer("a", U32, "read_only")
    with k.region():
        out[k.thread] = k.thread
    with k.region():
        k.let("x", a.at(k.thread ^ 1))
    assert [within for _, _, within in _planned(k.build())] == [False, True]


def test_assertion_calls_cudas_own_with_code_and_kernel() -> None:
    text = compile_ptx([control_flow()[0]])
    assert "__assertfail" in text
    message = ", ".join(str(byte) for byte in b"code 12")
    assert message in text


def test_wrong_requests_are_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match=r"target.*sm_42"):
        compile_ptx([ADD], target="sm_42")
    with pytest.raises(InvalidValue, match=r"ptx_version.*7\.0.*sm_90"):
        compile_ptx([ADD], target="sm_90", ptx_version="7.0")
    with pytest.raises(InvalidValue, match=r"ptx_version.*99"):
        compile_ptx([ADD], ptx_version="99.0")
    with pytest.raises(InvalidValue, match="at least one kernel"):
        compile_ptx([])
    with pytest.raises(InvalidValue, match=r"kernels\[1\]\.name.*accy_add_f32"):
        compile_ptx([ADD, ADD])
    with pytest.raises(InvalidType, match=r"kernels\[0\]"):
        compile_ptx(["add"])  # type: ignore[list-item]
    for name in ("_", "WARP_SZ"):
        with pytest.raises(InvalidValue, match="a name that PTX takes"):
            compile_ptx([Kernel(name, (), (), (1, 1, 1), ())])


def test_library_entries_hold_ptx_and_are_remembered() -> None:
    found = library_entries(ArtifactFormat.CUDA_PTX, dtype=DType.I32)
    assert found == library_entries("cuda_ptx", dtype=DType.I32)
    for entry in found:
        assert isinstance(entry.payload, str)
        assert list(entries(entry.payload)) == [entry.entry_name]
        assert entry.format is ArtifactFormat.CUDA_PTX
    cpu = library_entries(dtype=DType.I32)
    assert [e.target for e in cpu] == [e.target for e in found]
    for on_cpu, on_gpu in zip(cpu, found, strict=True):
        assert on_cpu.buffers == on_gpu.buffers
        if "scan" not in on_cpu.target:  # there a block takes more tiles on a GPU
            assert on_cpu.launch == on_gpu.launch
    newer = library_entries("cuda_ptx", dtype=DType.I32, level="sm_90")
    assert ".target sm_90" in str(newer[0].payload)
    both = KernelCallRegistry((*cpu, *found))
    for format in ("cuda_ptx", "cpu_machine_code"):
        assert both.get("accy.kernel.add", 1, ArtifactFormat(format)).format == format


def test_registries_are_for_their_devices() -> None:
    target = "accy.kernel.add"
    registry = cuda_registry(targets=[target])
    assert [entry.format for entry in registry] == [ArtifactFormat.CUDA_PTX]
    again = library_registry("cuda_ptx", targets=[target])
    assert registry.entries[0] is again.entries[0]
    with pytest.raises(UnsupportedOperation, match="cpu_object is no format of cuda"):
        cuda_registry("cpu_object")
    with pytest.raises(UnsupportedOperation, match="cuda_cubin"):
        library_registry("cuda_cubin")


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not on the PATH")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_ptxas_takes_everything(architecture: str, tmp_path: Path) -> None:
    library = [each.kernel for dtype in DType for each in library_kernels(dtype)]
    for number, kernels in enumerate((library, every_operation(), control_flow())):
        path = tmp_path / f"{number}.ptx"
        path.write_text(compile_ptx(kernels))
        out = str(tmp_path / "out.cubin")
        command = ["ptxas", f"-arch={architecture}", str(path), "-o", out]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
