"""The compilers of TPUs and GPUs, without a TPU or GPU."""
