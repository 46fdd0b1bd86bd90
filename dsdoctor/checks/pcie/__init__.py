"""The PCI bus around the GPUs: links, bridges and what stands between two devices."""
