"""Laws: equations between operators, the cheapest equal operator, and the proof of it."""
