"""Dynamic Token Normalization on GPUs, by Triton kernels. Nothing here imports triton before a kernel runs."""
