"""Schedule passes that only GPUs have: which steps share a launch, and what runs where its operands are."""
