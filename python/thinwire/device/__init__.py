"""Kernels for GPUs, in Triton, with the bits of the engine's own kernels.

`python -m thinwire.device` proves a GPU: it compares every kernel with the engine on the host, bit for bit, and measures its bandwidth.
docs/gpu.md says what runs where today. The modules, in reading order: `rounding` (16-bit numbers), `payload` (bytes of a payload),
`formulas` (the optimizers' equations), `kernels` (what is launched), `launch` (calls on tensors), `twins` (the comparison).

Nothing here is imported by the rest of the package. Triton comes with PyTorch's wheels for GPUs.
"""
