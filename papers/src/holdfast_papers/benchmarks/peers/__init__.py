"""The peers, each in its own best layout: inputs are brought there before the clock starts."""
