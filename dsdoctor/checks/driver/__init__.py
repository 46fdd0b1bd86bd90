"""The NVIDIA driver: is it there, does it fit the GPU and the CUDA in use, and do its parts agree?"""
