"""Convolutions, their derivatives, and pooling."""
