"""Programs for meshes."""
