"""The payloads: deterministic, for every level, described, and refused if wrong."""

from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding
import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.native.host import host_architecture, host_level
from accy_async.artifact.native.loader import load_machine_code
from accy_async.artifact.native.signature import SignatureTable, encode_signatures
from accy_async.compiler.emit import compile_cpu, emit_cpu_assembly, emit_llvm_ir
from accy_async.compiler.emit.llvm import emit_object
from accy_async.compiler.emit.target import LEVELS, cpu_target
from accy_async.compiler.form import (
    Kernel,
)
from accy_async.compiler.kernels import TILE, add, tile_scan
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

LONG = 2**32
ADD, SCAN = add(DType.F32).kernel, tile_scan(DType.F32).kernel


def test_each_compilation_frees_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some 100 KiB, once: a search compiles thousands of kernels."""
    base = llvmlite.binding.newpassmanagers.NewPassManager
    dispose, freed = base._dispose, []

    def counted(manager: object) -> None:
        freed.append(manager)
        dispose(manager)

    monkeypatch.setattr(base, "_dispose", counted)
    emit_cpu_assembly([ADD])
    assert len(freed) == 1
    assert freed.pop().closed  # type: ignore[attr-defined]
    gc.collect()
    assert not freed


_DIGEST = """
import hashlib
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.kernels import add, tile_scan
from accy_async.dtypes import DType
kernels = [add(DType.F32).kernel, tile_scan(DType.F32).kernel]
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
        blocks = -(-(TILE * 3 + 1) // (library.elements_per_block or LONG))
        assert geometry.grid == (blocks, 1, 1)
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
    with pytest.raises(InvalidValue, match=r"targets.*tile_scan"):
        library_entries(dtype=DType.BOOL, targets=["accy.kernel.scan.tile_scan"])
    with pytest.raises(UnsupportedOperation, match="cuda_cubin"):
        library_entries(ArtifactFormat.CUDA_CUBIN)
    with pytest.raises(UnsupportedOperation, match="cuda_ptx is no format of cpu"):
        cpu_registry(ArtifactFormat.CUDA_PTX)
