"""How GPUs, network adapters and processors of a node are wired: one graph, whatever it was read from, and what follows from it."""
