"""The NVSwitch fabric: does its manager run, do its versions agree, and have the GPUs joined it?"""
