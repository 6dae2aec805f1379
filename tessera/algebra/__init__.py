"""Linear operators as values: structure, algebra, laws, solvers and spectra."""
