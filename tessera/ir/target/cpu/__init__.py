"""The CPU: Tile IR as LLVM IR, and LLVM IR as machine code."""
