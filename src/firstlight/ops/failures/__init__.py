"""Small programs that fail on purpose, each in one way, and do not once they are mended."""
