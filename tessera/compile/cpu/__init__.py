"""The CPU as a target: its lowering, its machine code and what runs it."""
