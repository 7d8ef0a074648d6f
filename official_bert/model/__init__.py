"""BERT itself: its configuration, the encoder and the heads, fused kernels."""
