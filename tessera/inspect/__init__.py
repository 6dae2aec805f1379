"""Looking into programs: what they become, and where their time and memory go."""
