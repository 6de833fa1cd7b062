"""NVIDIA GPUs through the CUDA driver."""

from accy_async.backends.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
