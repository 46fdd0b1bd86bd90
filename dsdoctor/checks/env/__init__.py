"""Environment variables that hide GPUs, switch fast paths off, or hold values nobody accepts."""
