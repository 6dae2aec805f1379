"""Graph IR: what a program computes, as ops on whole tensors in SSA form."""
