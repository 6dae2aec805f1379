"""The kernel language: Python functions over tiles, parsed to Tile IR."""
