"""What the world is like: YAML knowledge, each row with its source and date. Read through `dsdoctor.matrix`."""
