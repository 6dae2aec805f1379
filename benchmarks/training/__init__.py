"""The workloads of benchmarks/train.py: what they start from, and each library's way to write them."""
