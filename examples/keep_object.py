"""Compile once, keep the object file, run it in another process, without LLVM."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import accy_async
from accy_async import ArtifactFormat, DType, FixedLaunch, ScalarArgument
from accy_async.artifact import ArtifactRequest
from accy_async.backends import LaunchRequest


def keep(path: Path) -> None:
    from accy_async.compiler.kernels.catalogue import library_entries

    (entry,) = library_entries(ArtifactFormat.CPU_OBJECT, targets=["accy.kernel.add"])
    path.write_bytes(entry.payload)
    print(f"kept {entry.entry_name}: {len(entry.payload)} bytes")


async def use(payload: bytes) -> None:
    # The file describes its kernels, so a wrong argument, a truncated file or
    # one for another processor is refused before anything runs.
    request = ArtifactRequest(
        kernel_name="accy_add_f32",
        requested_format=ArtifactFormat.CPU_OBJECT,
        argument_count=4,
        scalar_argument_count=1,
        payload=payload,
    )
    a, b = np.arange(256, dtype=np.float32), np.ones(256, np.float32)
    async with accy_async.open_session("cpu") as session:
        arrays = [session.allocate(256, DType.F32)]
        arrays += [await session.upload(array) for array in (a, b)]
        artifact = session.backend.create_artifact(request)
        session.backend.launch(
            LaunchRequest(
                artifact=artifact,
                loaded=session.backend.load_artifact(artifact),
                buffers=tuple(array.binding() for array in arrays),
                scalars=(ScalarArgument.u32(256),),
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(256, 1, 1)),
            )
        )
        assert np.array_equal(await session.download(arrays[0]), a + b)
    print(f"ran it in a process that loaded LLVM: {'llvmlite' in sys.modules}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        accy_async.run(use, Path(sys.argv[1]).read_bytes())
    else:
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "add.o"
            keep(kept)
            subprocess.run([sys.executable, __file__, str(kept)], check=True)
