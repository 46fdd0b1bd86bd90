"""RDMA: can network cards reach the memory of the GPUs?"""
