"""Iterative solvers: linear systems, least squares, eigenvalues, functions, traces and determinants."""
