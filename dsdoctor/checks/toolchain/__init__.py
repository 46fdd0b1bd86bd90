"""Compilers, headers and CUDA toolkits for what is compiled on this node."""
