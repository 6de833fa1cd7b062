"""Tests of preparing and compiling tensor programs."""
