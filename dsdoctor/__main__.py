"""`python -m dsdoctor`."""

from dsdoctor.cli import main

main()
