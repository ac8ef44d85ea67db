"""Modules: parameters, layers, and what they are built from. Their public names are those of `rf`."""
