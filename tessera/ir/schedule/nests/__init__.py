"""Nests: the loops that compute a kernel on the CPU, which of them are legal, and how one is chosen."""
