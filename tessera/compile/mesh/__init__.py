"""Programs on meshes: sharded arrays, and graphs that are partitioned, batched and compiled for a rank."""
