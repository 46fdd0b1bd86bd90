"""Many reports → one answer: what the nodes of a fleet have in common, and which are the odd ones out.

`documents` reads files into texts, `store` puts what matters of each text into DuckDB, `compare` asks it, `answer` is what comes out.
"""
