"""The parts of the Backend contract; `accy_async.backends.base` puts them together."""

__all__: list[str] = []
