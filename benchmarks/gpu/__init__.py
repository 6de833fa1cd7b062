"""Measurements on NVIDIA GPUs, each beside its peers in one run."""
