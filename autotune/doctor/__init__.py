"""Checks of this machine: versions, GPUs, permissions, known problems, and a self-test."""
