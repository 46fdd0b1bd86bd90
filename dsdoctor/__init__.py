"""The environment doctor for GPU nodes that serve and train DeepSeek-class models."""

__version__ = "0.1.0"
