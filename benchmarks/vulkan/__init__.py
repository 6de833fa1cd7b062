"""What Vulkan costs here, beside CUDA and wgpu-py where these are installed.

``python -m benchmarks.vulkan`` runs all sections; see `benchmarks.vulkan.sections`.
"""
