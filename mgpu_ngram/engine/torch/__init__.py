"""PyTorch tensors as arrays, and operators that `torch.compile` keeps."""
