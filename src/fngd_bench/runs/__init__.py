"""What a training run leaves on disk, line by line, and how it is read back. Nothing here imports torch."""
