"""Run the check on every node of a fleet through an engine that is there already: ssh, ClusterShell, MPI, Slurm, Kubernetes or Ray.

An engine knows its nodes and carries one command to each of them; `collect` asks them all within deadlines and keeps each answer at once.
"""
