"""The twin of the Training Operator: a PyTorchJob is executed as processes of this machine."""
