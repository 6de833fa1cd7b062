"""What things cost on an NVIDIA GPU, beside the peers that are installed.

``python -m benchmarks.gpu`` runs every section and prints its tables; each also runs
by itself, as ``python -m benchmarks.gpu launch``. A target stands beside what it is
held against, and whether it is met; nothing asserts a time.
"""
