"""Deployment: bundles, which other machines, processes and languages load and run with the same bits."""
