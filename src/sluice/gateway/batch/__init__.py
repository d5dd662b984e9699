"""The batch tier: files, jobs made of them, and what works them off."""
