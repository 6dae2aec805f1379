"""Cases that run on the CPU by Tessera and by JAX: single ops, and programs with loops."""
