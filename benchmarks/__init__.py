"""What things cost, beside a peer in the same run.

``python -m benchmarks`` runs them all; each also runs by itself, as
``python -m benchmarks.bandwidth``. Nothing asserts a time: read the ratios.
"""
