"""Kernels of topic models (latent Dirichlet allocation)."""
