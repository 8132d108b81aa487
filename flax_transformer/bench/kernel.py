"""Which kernels a compiled program calls that its compiler did not write, and what they will ask for beside it.

Read off the program's text (HLO), as `parallel.collectives` does.
"""

import re
from collections import Counter

TARGETS = {
    "tpu_custom_call": "Pallas",
    "__gpu$xla.gpu.triton": "Pallas Triton",
    "triton_kernel_call": "Pallas Triton",
    "mosaic_gpu": "Pallas Mosaic",
    "mosaic_gpu_v2": "Pallas Mosaic",
    "__cudnn$fmhaSoftmax": "cuDNN",
    "__cudnn$fmhaSoftmaxBackward": "cuDNN",
    "__cudnn$fmhaScaleBiasSoftmax": "cuDNN",
    "__cudnn$fmhaScaleBiasSoftmaxBackward": "cuDNN",
}
"""What a call is for, by its target in the program."""

_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_BACKWARD = re.compile(
    r'custom_call_target="__cudnn\$fmha\w*Backward", operand_layout_constraints=\{\w+\[(\d+),(\d+),(\d+),(\d+)\]'
)


def kernels(text: str) -> Counter[str]:
    """Count calls of kernels by who wrote them.

    >>> kernels('custom_call_target="tpu_custom_call" custom_call_target="Sharding"')
    Counter({'Pallas': 1})
    """
    return Counter(TARGETS[name] for name in _TARGET.findall(text) if name in TARGETS)


def workspace(text: str) -> int:
    """Reckon the bytes that cuDNN's attention takes beside what the compiler has planned: one call at a time has them.

    The compiler asks cuDNN for it only on a machine that has the GPU. A forward pass takes none; a backward pass has
    gradients of queries [B, T, N, H], and a number for each query and head, in float32: what cuDNN 9.28 itself says
    when it is asked to build such calls.
    """
    calls = (tuple(map(int, found)) for found in _BACKWARD.findall(text))
    return max((4 * B * T * N * (H + 1) for B, T, N, H in calls), default=0)
