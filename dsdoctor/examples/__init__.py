"""Recorded nodes that ship with the doctor; `dsdoctor replay example:NAME`."""
