"""Graph -> Graph: inline, simplify, differentiate."""
