"""The network between nodes, as far as one node can see it."""
