"""The ways to obtain a snapshot: live probes, a recording, pasted text."""
