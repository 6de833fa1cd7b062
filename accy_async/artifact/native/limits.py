"""Bounds that the readers and writers of native code share."""

from __future__ import annotations

__all__ = ["MAX_IMAGE_BYTES", "MAX_SECTION_ALIGNMENT"]

# Sizes are checked against it before anything is allocated. It also keeps every
# offset within an image far inside the ±2 GiB of a 32-bit relative reference.
MAX_IMAGE_BYTES = 256 << 20

# An image is placed at a page boundary, and 4096 is the smallest page of either
# architecture, so no larger alignment can be promised.
MAX_SECTION_ALIGNMENT = 4096
