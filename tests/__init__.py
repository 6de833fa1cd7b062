"""The tests. One command runs them and every other check: python -m tests.check."""
