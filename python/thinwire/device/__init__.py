"""Kernels for GPUs, in Triton, with the bits of the engine's own kernels.

`python -m thinwire.device` proves a GPU: it compares every kernel with the engine on the host, bit for bit, and measures its bandwidth.
docs/gpu.md says what runs where today. The modules, in reading order: `rounding` (16-bit numbers), `payload` (bytes of a payload),
`formulas` (the optimizers' equations), `kernels` (what is launched), `launch` (calls on tensors), `twins` (the comparison), `proof` (its
short form).

`machine` (the vectors of a worker, and the calls of the engine) and `flat` (a model's parameters as such a vector) connect them to the
optimizers. The rest of the package imports this only where kernels are to run. Triton comes with PyTorch's wheels for GPUs.
"""
