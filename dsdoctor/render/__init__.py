"""Ways to show a report; each reads a report and nothing else."""
