"""Tests of compiled and loaded fragments."""
