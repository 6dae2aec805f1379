"""All ops, one record each.  A module's public names are its op functions."""
