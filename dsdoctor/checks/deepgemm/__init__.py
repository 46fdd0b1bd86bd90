"""Checks of DeepGEMM."""
