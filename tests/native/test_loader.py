from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from accy_async.artifact.native import (
    ForeignMachineCode,
    LaunchBlock,
    NativeKernel,
    encode_image,
    host_level,
    level_supports,
    link_object,
    load_machine_code,
    load_object,
    loader,
    memory,
    parse_object,
)
from accy_async.artifact.native.host import X86_64_LEVELS
from accy_async.artifact.native.link import link_image
from accy_async.errors import (
    CapabilityMismatch,
    InvalidArtifact,
    InvalidType,
    RuntimeUnavailable,
)
from tests.native.objects import (
    ALLOC,
    EM_AARCH64,
    EM_X86_64,
    EXEC,
    FUNC,
    MINIMAL,
    MINIMAL_KERNELS,
    TARGETS,
    Sec,
    Sym,
    compile_ir,
    host_object,
    signature_section,
    write_elf,
)

Load = Callable[[bytes, str], NativeKernel]


def from_machine_code(payload: bytes, entry_name: str) -> NativeKernel:
    return load_machine_code(link_object(payload), entry_name)


LOADERS = [
    pytest.param(load_object, id="object"),
    pytest.param(from_machine_code, id="machine-code"),
]


def call(kernel: NativeKernel, *slots: int, begin: int = 0, end: int = 1) -> int:
    arguments = (ctypes.c_uint64 * max(len(slots), 1))(*slots)
    launch = LaunchBlock(grid=(end, 1, 1), block_begin=begin, block_end=end)
    return kernel.function(ctypes.addressof(arguments), ctypes.byref(launch))


def float_slot(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@pytest.mark.parametrize("load", LOADERS)
def test_kernel_with_table_call_and_import(load: Load, host: str) -> None:
    """An internal call, an imported expf and an exported table all arrive."""
    x = np.linspace(-2, 2, 21, dtype=np.float32)
    y = np.zeros_like(x)
    kernel = load(host_object(host), "transform")
    try:
        code = call(
            kernel, x.ctypes.data, y.ctypes.data, float_slot(0.5), begin=1, end=20
        )
    finally:
        kernel.close()
    wanted = 0.5 * np.exp(x) + (np.arange(21) % 8 + 1)
    wanted[[0, 20]] = 0
    assert code == 0
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


@pytest.mark.parametrize("load", LOADERS)
def test_kernel_with_pointer_table(load: Load, host: str) -> None:
    """A constant table of function pointers holds callable addresses."""
    x = np.array([0.25, 0.5], dtype=np.float32)
    y = np.zeros_like(x)
    kernel = load(host_object(host), "dispatch")
    try:
        codes = [
            call(kernel, x.ctypes.data, y.ctypes.data, begin=b, end=b + 1)
            for b in (0, 1)
        ]
    finally:
        kernel.close()
    assert codes == [5, 5]
    np.testing.assert_allclose(y, [np.exp(0.25), np.tanh(0.5)], rtol=1e-6)


@pytest.mark.parametrize("load", LOADERS)
def test_kernel_with_vector_constants(load: Load, host: str) -> None:
    x = np.arange(4, dtype=np.float32)
    y = np.ones(13, dtype=np.float32)
    kernel = load(host_object(host), "vectors")
    try:
        assert call(kernel, x.ctypes.data, y.ctypes.data) == 0
    finally:
        kernel.close()
    assert y.tolist() == [0.5, 2.25, 6.125, 14.0, *[0.0] * 8, 1.0]


@pytest.mark.parametrize("load", LOADERS)
def test_each_load_has_its_own_data(load: Load, host: str) -> None:
    """Writable data begins as written, or as zeros, and is shared with nobody."""
    first, second = (load(host_object(host), "count") for _ in range(2))
    y = np.zeros(2, dtype=np.float32)
    try:
        seen = []
        for kernel in (first, first, second):
            assert call(kernel, y.ctypes.data) == 0
            seen.append(y.tolist())
    finally:
        first.close()
        second.close()
    assert seen == [[41.0, 1.0], [42.0, 2.0], [41.0, 1.0]]


def test_unoptimised_object_runs_alike(host: str) -> None:
    x = np.linspace(0, 1, 4, dtype=np.float32)
    y = np.zeros_like(x)
    payload = compile_ir(architecture=host, optimize=0)
    kernel = load_object(payload, "transform")
    try:
        call(kernel, x.ctypes.data, y.ctypes.data, float_slot(2.0), end=4)
    finally:
        kernel.close()
    np.testing.assert_allclose(y, 2 * np.exp(x) + [1, 2, 3, 4], rtol=1e-6)


SOURCE = r"""
#include <stdint.h>
#include <string.h>
extern float expf(float), tanhf(float);
static const float table[256] = {1, 2, 3};
float (*const ops[])(float) = {expf, tanhf};
static int counter;
int big[1000];
int initialised = 7;
__attribute__((noinline)) static float look(float x) { return x * table[(int)x]; }
static const char *const names[] = {"a", "bb"};
int32_t entry(const uint64_t *arguments, const void *launch) {
    float *p = (float *)arguments[0];
    big[++counter] = initialised;
    float v = ops[(int)p[1] & 1](p[0]);
    switch ((int)p[2]) {
    case 0: v += 1; break;
    case 1: v *= expf(v); break;
    case 2: v -= 3; break;
    case 3: v = look(2.5f); break;
    case 4: v = big[1] + names[(int)p[1] & 1][0]; break;
    case 5: v = __builtin_sqrtf(v); break;
    default: v = -1;
    }
    memset(p + 4, 0, (size_t)p[3]);
    p[0] = v;
    return 0;
}
"""


def compile_c(directory: Path, source: str, *options: str) -> bytes:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc to compile with")
    (directory / "kernel.c").write_text(source)
    command = [compiler, "-c", *options, "kernel.c", "-o", "kernel.o"]
    subprocess.run(command, cwd=directory, check=True)
    return (directory / "kernel.o").read_bytes()


def signature_in_c(host: str) -> str:
    data = signature_section(host).data
    values = ",".join(map(str, data))
    return (
        '__attribute__((section(".accy.kernels"))) '
        f"const unsigned char accy_kernel_signatures[{len(data)}] = {{{values}}};\n"
    )


@pytest.mark.parametrize(
    "options", [("-O2",), ("-O0",), ("-O2", "-ffunction-sections")]
)
def test_object_of_another_compiler(
    tmp_path: Path, host: str, options: tuple[str, ...]
) -> None:
    """Jump tables, pointer tables, strings and zeroed data as gcc writes them."""
    flags = ("-fPIC", "-fno-stack-protector", *options)
    payload = compile_c(tmp_path, signature_in_c(host) + SOURCE, *flags)
    results: dict[int, list[float]] = {}
    for load in (load_object, from_machine_code):
        kernel = load(payload, "entry")
        try:
            for case in range(7):
                p = np.array([0.5, 1, case, 8, 9, 9, 9], dtype=np.float32)
                assert call(kernel, p.ctypes.data) == 0
                assert p[4:].tolist() == [0, 0, 9]
                results.setdefault(case, []).append(float(p[0]))
        finally:
            kernel.close()
    v = float(np.tanh(0.5))
    wanted = [v + 1, v * np.exp(v), v - 3, 7.5, 7 + ord("b"), np.sqrt(v), -1]
    for case, values in results.items():
        np.testing.assert_allclose(values, wanted[case], rtol=1e-6)


def test_object_that_is_not_position_independent(tmp_path: Path, host: str) -> None:
    if host != "x86_64":
        pytest.skip("only x86-64 has 32-bit absolute addresses")
    source = signature_in_c(host) + "int t[9]; int *entry(int i) { return t + i; }"
    payload = compile_c(tmp_path, source, "-O2", "-fno-pic", "-mcmodel=small")
    with pytest.raises(
        InvalidArtifact, match=r"'\.text' has a relocation of type 1[01]"
    ):
        load_object(payload, "entry")


def executable_mappings() -> int:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        pytest.skip("this system has no /proc/self/maps")
    return sum("x" in line.split()[1] for line in lines)


@pytest.mark.parametrize("load", LOADERS)
def test_close_unmaps(load: Load, host: str) -> None:
    """Mappings are there while the kernel is open, and gone afterwards."""
    payload = host_object(host)
    load(payload, "count").close()
    before = executable_mappings()
    kernels = [load(payload, "count") for _ in range(5)]
    assert executable_mappings() == before + 5
    for kernel in kernels:
        kernel.close()
        kernel.close()
        assert kernel.is_closed
    assert executable_mappings() == before


def test_no_page_is_writable_and_executable(host: str) -> None:
    kernel = load_object(host_object(host), "count")
    try:
        base = kernel.address & -4096
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        pytest.skip("this system has no /proc/self/maps")
    finally:
        kernel.close()
    found = {}
    for line in lines:
        extent, protection, *_ = line.split()
        start, end = (int(part, 16) for part in extent.split("-"))
        if start < base + kernel.image_bytes and base < end:
            found[max(start - base, 0)] = protection
    assert list(found.values()) == ["r-xp", "r--p", "rw-p"]


def test_use_after_close(host: str) -> None:
    kernel = load_object(host_object(host), "count")
    assert repr(kernel) == "<NativeKernel 'count' open>"
    assert kernel.address % 4 == 0
    kernel.close()
    assert repr(kernel) == "<NativeKernel 'count' closed>"
    with pytest.raises(InvalidArtifact, match="'count' was closed"):
        _ = kernel.function
    with pytest.raises(InvalidArtifact, match="'count' was closed"):
        _ = kernel.address


def test_kernel_dropped_open(host: str) -> None:
    """It warns, and stays mapped: another thread might be running it."""
    kernel = load_object(host_object(host), "count")
    base, size, function = kernel.address & -4096, kernel.image_bytes, kernel.function
    before = executable_mappings()
    with pytest.warns(ResourceWarning, match="'count' was dropped without close"):
        del kernel
        gc.collect()
    assert executable_mappings() == before
    del function
    memory.unmap_image(base, size)


def test_closed_kernel_is_dropped_silently(host: str) -> None:
    kernel = load_object(host_object(host), "count")
    kernel.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del kernel
        gc.collect()


def test_many_threads_load_and_close(host: str) -> None:
    payload = host_object(host)
    machine_code = link_object(payload)
    failures: list[BaseException] = []

    def work() -> None:
        y = np.zeros(2, dtype=np.float32)
        try:
            for _ in range(20):
                for load, data in (
                    (load_object, payload),
                    (load_machine_code, machine_code),
                ):
                    kernel = load(data, "count")
                    call(kernel, y.ctypes.data)
                    kernel.close()
                    assert y.tolist() == [41.0, 1.0]
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    before = executable_mappings()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert executable_mappings() == before


@pytest.mark.parametrize("load", LOADERS)
def test_wrong_architecture(load: Load, host: str) -> None:
    other = "aarch64" if host == "x86_64" else "x86_64"
    with pytest.raises(ForeignMachineCode) as caught:
        load(host_object(other), "transform")
    assert str(caught.value) == f"native code for {other}, this machine is {host}"
    assert isinstance(caught.value, InvalidArtifact)
    assert isinstance(caught.value, CapabilityMismatch)


@pytest.mark.parametrize("load", LOADERS)
def test_level_too_high(load: Load, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [*X86_64_LEVELS] if host == "x86_64" else ["armv8-a", "armv9-a"]
    high, low = levels[-1], levels[0]
    payload = compile_ir(MINIMAL, MINIMAL_KERNELS, host, level=high)
    monkeypatch.setattr(loader, "host_level", lambda: low)
    with pytest.raises(ForeignMachineCode, match=f"for {high}, this machine supports"):
        load(payload, "entry")


@pytest.mark.parametrize("load", LOADERS)
def test_unknown_level(load: Load, host: str) -> None:
    payload = compile_ir(MINIMAL, MINIMAL_KERNELS, host, level="x86-64-v9")
    with pytest.raises(ForeignMachineCode, match="x86-64-v9"):
        load(payload, "entry")


@pytest.mark.parametrize("load", LOADERS)
def test_missing_entry_lists_what_is_there(load: Load, host: str) -> None:
    with pytest.raises(InvalidArtifact) as caught:
        load(host_object(host), "nothing")
    assert str(caught.value) == (
        "native code has no signature for an entry 'nothing'; its entries are: "
        "count, dispatch, transform, vectors"
    )


def test_signature_without_code(host: str) -> None:
    payload = compile_ir(MINIMAL.replace("@entry", "@another"), MINIMAL_KERNELS, host)
    with pytest.raises(InvalidArtifact, match="a signature, but no code for an entry"):
        load_object(payload, "entry")
    with pytest.raises(InvalidArtifact, match="list entry, which it does not define"):
        link_object(payload)


def test_entry_in_a_section_that_is_dropped(host: str) -> None:
    machine = EM_X86_64 if host == "x86_64" else EM_AARCH64
    hidden = Sec(".eh_frame", bytes(16), ALLOC | EXEC)
    symbol = Sym("entry", 1, 0, FUNC)
    payload = write_elf([hidden, signature_section(host)], [symbol], machine)
    with pytest.raises(InvalidArtifact, match="'entry' is in a section that is not"):
        load_object(payload, "entry")


@pytest.mark.parametrize("load", [load_object, load_machine_code])
def test_signatures_that_name_another_architecture(load: Load, host: str) -> None:
    other = "aarch64" if host == "x86_64" else "x86_64"
    machine = EM_X86_64 if host == "x86_64" else EM_AARCH64
    code = Sec(".text", bytes(16), ALLOC | EXEC)
    symbol = Sym("entry", 1, 0, FUNC)
    payload = write_elf([code, signature_section(other)], [symbol], machine)
    if load is load_machine_code:
        payload = encode_image(link_image(parse_object(payload)))
    with pytest.raises(InvalidArtifact, match=f"whose signatures say {other}"):
        load(payload, "entry")


@pytest.mark.parametrize("load", [load_object, load_machine_code])
@pytest.mark.parametrize(
    "payload",
    [b"", b"\x7f", b"text as a payload", b"\0" * 500, b"\x7fELF" + b"\xff" * 400],
    ids=["empty", "one-byte", "text", "zeros", "ones"],
)
def test_payload_that_is_no_code(load: Load, payload: bytes) -> None:
    with pytest.raises(InvalidArtifact) as caught:
        load(payload, "entry")
    assert caught.value.offset is not None


@pytest.mark.parametrize("load", [load_object, load_machine_code])
def test_payload_that_is_no_bytes(load: Load) -> None:
    with pytest.raises(InvalidType, match="payload"):
        load("text", "entry")  # type: ignore[arg-type]


def test_payload_of_another_buffer_type(host: str) -> None:
    payload = compile_ir(MINIMAL, MINIMAL_KERNELS, host)
    for given in (bytearray(payload), memoryview(payload)):
        kernel = load_object(given, "entry")
        assert call(kernel) == 3
        kernel.close()


def test_executable_file_as_object() -> None:
    path = Path("/bin/true")
    if not path.exists() or path.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("there is no /bin/true that is an ELF file")
    with pytest.raises(InvalidArtifact, match="expected a relocatable object"):
        load_object(path.read_bytes(), "main")


@pytest.mark.parametrize("load", LOADERS)
def test_refused_mapping_leaves_nothing(
    load: Load, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory may not become executable, the error says so."""
    payload = host_object(host)
    load(payload, "count").close()

    def refuse(address: int, size: int, protection: int) -> None:
        raise RuntimeUnavailable("the system does not let memory become executable")

    lines = len(Path("/proc/self/maps").read_text().splitlines())
    monkeypatch.setattr(memory, "_protect", refuse)
    for _ in range(20):
        with pytest.raises(RuntimeUnavailable):
            load(payload, "count")
    assert len(Path("/proc/self/maps").read_text().splitlines()) < lines + 15


def test_host_that_runs_no_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "host_architecture", lambda: "riscv64")
    with pytest.raises(RuntimeUnavailable, match="this machine is riscv64"):
        load_object(host_object("x86_64"), "count")


def test_targets_are_those_of_the_levels(host: str) -> None:
    """The baseline that tests compile for runs wherever the loader runs."""
    assert level_supports(host_level(), TARGETS[host][2])
