"""Fleets: lists of candidates that several workers measure."""
