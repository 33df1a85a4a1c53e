"""Training of topic models by collapsed Gibbs sampling, and its measures."""
