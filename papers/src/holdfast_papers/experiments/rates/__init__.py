"""Beyond the papers: how fast a memory can be learned, and by which parameterization."""
