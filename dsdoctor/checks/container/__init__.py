"""What a container lets through: device files, driver libraries, device rules."""
