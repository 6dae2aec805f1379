"""The tuner: which nest computes a kernel fastest on this machine.

search ranks the nests of a kernel's space by a cost model, measures the best few in turn and keeps what it
finds in the store (runtime/tuned.py), where the compiler looks it up.  No nest changes a bit of a result.
"""
