"""Launch graphs: plans of device and host work, and their running."""

__all__: list[str] = []
