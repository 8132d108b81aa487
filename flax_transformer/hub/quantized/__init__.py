"""Quantized checkpoints: GPTQ, AWQ, FP8, compressed-tensors and bitsandbytes in, compressed-tensors out."""
