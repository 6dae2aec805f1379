"""The target of Hopper's matrix units: Tile IR printed as Gluon, with roles for groups of threads."""
