"""Structured concurrency for GPU and CPU kernels."""
