"""Tile IR: how a kernel computes, as one program instance on tiles of static shape."""
