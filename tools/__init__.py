"""What maintainers run now and then; nothing of it is installed."""
