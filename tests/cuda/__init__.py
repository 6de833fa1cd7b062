"""Tests of the CUDA backend that need no GPU: the driver is made up."""
