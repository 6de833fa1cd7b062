"""CUDA C++ into device binaries, through NVRTC, with a cache on disk.

Needs no driver and no device; NVRTC itself comes with ``accy-async[nvrtc]``.
"""

from accy_async.compiler.nvrtc.binary import CudaBinary
from accy_async.compiler.nvrtc.compile import compile_cuda
from accy_async.compiler.nvrtc.library import nvrtc_architectures, nvrtc_version

__all__ = ["CudaBinary", "compile_cuda", "nvrtc_architectures", "nvrtc_version"]
