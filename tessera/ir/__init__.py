"""The four levels of the compiler: graph, schedule, tile and target."""
