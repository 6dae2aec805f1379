"""Learning: functional optimisers."""
