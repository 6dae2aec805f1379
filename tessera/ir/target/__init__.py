"""Target IR: machine programs, one package for each kind of machine."""
