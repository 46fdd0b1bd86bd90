"""What is special about Linux under Windows (WSL)."""
