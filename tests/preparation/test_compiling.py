"""Compiling a job: code, the cache, cancellation, and who is told."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import attrs
import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
from accy_async.artifact.planned import ArtifactPlan
from accy_async.artifact.store import ArtifactStore
from accy_async.backends import RecordingBackend
from accy_async.compiler.emit.text import glslang
from accy_async.compiler.preparation import (
    FragmentInstrumentation,
    FragmentPhase,
    PreparedJob,
    TargetProfile,
    code,
    compile_plan,
    prepare,
)
from accy_async.errors import AccyError, PassFailed, RuntimeUnavailable
from tests.preparation.harness import CPU, CUDA, METAL, VULKAN, module_of, prepared


def two_kernels(f: Any, x: Any, m: Any) -> Any:
    return f.matmul(f.softmax(x), m)


def job_for(profile: TargetProfile = CPU, **options: Any) -> PreparedJob:
    return prepared("f32[8,8] f32[8,8]", two_kernels, profile, **options)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "cache")


def compilers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled what is in the cache")

    for name in ("compile_cpu", "compile_ptx", "compile_spirv", "emit_msl"):
        monkeypatch.setattr(code, name, refuse)


@pytest.mark.parametrize(
    "format",
    [
        ArtifactFormat.CPU_MACHINE_CODE,
        ArtifactFormat.CPU_OBJECT,
        ArtifactFormat.CUDA_PTX,
        ArtifactFormat.METAL_MSL,
        pytest.param(
            ArtifactFormat.VULKAN_SPIRV,
            marks=pytest.mark.skipif(
                glslang.find_glslang() is None, reason="there is no glslang"
            ),
        ),
    ],
)
def test_code_is_made_once_and_found_afterwards(
    format: ArtifactFormat, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RecordingBackend(kind=format.backend, format=format)
    job = job_for(TargetProfile.of(backend.capabilities))
    made = compile_plan(job, cache=store, create_artifact=backend.create_artifact)
    assert backend.create_count == 2
    assert len(store.entries()) == 2
    compilers_fail(monkeypatch)
    again = compile_plan(job_for(TargetProfile.of(backend.capabilities)), cache=store)
    assert again == made
    assert again.fingerprint == made.fingerprint


def test_code_of_another_target_is_another_entry(store: ArtifactStore) -> None:
    for architecture in ("sm_80", "sm_90"):
        identity = attrs.evolve(CUDA.capabilities.identity, architecture=architecture)
        capabilities = attrs.evolve(CUDA.capabilities, identity=identity)
        plan = compile_plan(job_for(TargetProfile.of(capabilities)), cache=store)
        assert all(f".target {architecture}" in payload(plan, i) for i in range(2))
    assert len(store.entries()) == 4


def payload(plan: ArtifactPlan, index: int) -> str:
    text = plan.kernel(index).artifact.payload
    assert isinstance(text, str)
    return text


def test_another_compiler_or_emitter_is_another_entry(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_plan(job_for(CUDA), cache=store)
    monkeypatch.setattr(code, "emitter_version", lambda: "another")
    compile_plan(job_for(CUDA), cache=store)
    monkeypatch.setattr(code, "compiler_version", lambda _: "another")
    compile_plan(job_for(CUDA), cache=store)
    assert len(store.entries()) == 6


def test_a_damaged_entry_is_compiled_anew(store: ArtifactStore) -> None:
    made = compile_plan(job_for(CUDA), cache=store)
    for file in store.folder.rglob("*.sealed"):
        file.write_bytes(file.read_bytes()[:-1])
    assert compile_plan(job_for(CUDA), cache=store) == made


def test_an_unknown_architecture_gets_code_that_all_run() -> None:
    assert ".target sm_80" in payload(compile_plan(job_for(CUDA), cache=False), 0)


def test_artifacts_are_created_once_for_launches_that_share_code() -> None:
    seen: list[ArtifactRequest] = []

    def create(request: ArtifactRequest) -> KernelArtifact:
        seen.append(request)
        return KernelArtifact.from_request(request)

    job = prepared(
        "f32[4,4] f32[4,4]", lambda f, x, m: f.matmul(f.matmul(x, m), m), CUDA
    )
    plan = compile_plan(job, cache=False, create_artifact=create)
    assert plan.kernel_count == 2
    assert len(seen) == 1
    assert plan.kernel(0).artifact is plan.kernel(1).artifact


class Stopped(Exception):
    """What the caller's callback raises."""


def stop_after(calls: int) -> Any:
    left = [calls]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stopped

    return check


def test_compiling_can_be_cancelled_before_every_kernel(store: ArtifactStore) -> None:
    job = job_for(CUDA)
    for calls in range(2):
        with pytest.raises(Stopped):
            compile_plan(job, cache=store, check_cancelled=stop_after(calls))
        assert len(store.entries()) == calls
    assert (
        compile_plan(job, cache=store, check_cancelled=stop_after(2)).kernel_count == 2
    )


def test_preparing_can_be_cancelled_at_every_operation() -> None:
    module = module_of("f32[8,8] f32[8,8]", two_kernels)
    calls = 0
    while True:
        try:
            prepare(module, CUDA, check_cancelled=stop_after(calls))
        except Stopped:
            calls += 1
            continue
        break
    assert calls > 8


def test_without_glslang_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    glslang.compile_shader.cache_clear()
    monkeypatch.setattr(glslang, "find_glslang", lambda: None)
    with pytest.raises(RuntimeUnavailable, match=r"install accy-async\[vulkan\]"):
        compile_plan(job_for(VULKAN), cache=False)


def test_metal_gets_text() -> None:
    assert "kernel void accy_row_pipeline_0_v1" in payload(
        compile_plan(job_for(METAL), cache=False), 0
    )


def test_every_phase_is_told_with_its_time() -> None:
    told: list[tuple[FragmentPhase, int]] = []
    instrumentation = FragmentInstrumentation(observe=lambda *what: told.append(what))
    job = job_for(CUDA, instrumentation=instrumentation)
    compile_plan(job, cache=False)
    assert len(told) == 8
    assert all(elapsed > 0 for _, elapsed in told)
    assert [ns for _, ns in told[:6]] == [p.elapsed_ns for p in job.run.phases]
    assert job.run.elapsed_ns == sum(ns for _, ns in told[:6])
    for phase in job.run.phases:
        assert phase.pass_runs == len(phase.passes) > 0
        assert sum(p.elapsed_ns for p in phase.passes) <= phase.elapsed_ns


def test_an_observer_that_is_no_function_is_refused() -> None:
    with pytest.raises(AccyError, match=r"FragmentInstrumentation\.observe"):
        FragmentInstrumentation(observe="loud")  # type: ignore[arg-type]


def test_failures_of_passes_can_be_sent_to_another_process() -> None:
    failure = PassFailed(
        "why",
        pipeline="tensor",
        pass_name="einsum_lowering",
        target_op="einsum",
        location="model.py:12",
    )
    copy = pickle.loads(pickle.dumps(failure))
    assert str(copy) == "tensor.einsum_lowering at einsum (model.py:12): why"
    assert vars(copy) == vars(failure)
