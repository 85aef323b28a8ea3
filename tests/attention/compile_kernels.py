"""Compiles the kernels for A100 and H100 without a device: ``python -m tests.attention.compile_kernels``.

Prints a line per kernel: its name, the target that its PTX names, and the bytes of shared memory that it takes.
"""

from __future__ import annotations

import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from treedecode.attention.paged_triton import block_sizes, pipeline
from treedecode.attention.triton_kernels import attend, merge

_SWITCHES = {"BLOCK_SIZE": 16, "HAS_WINDOW": True, "HAS_CAP": True, "IS_SPLIT": True}
_INPUTS = ("query", "key", "value", "key_cache", "value_cache", "output")
_TYPES = {
    **dict.fromkeys(["block_table", "trees", "words", "depths"], "*i32"),
    **dict.fromkeys(["parts", "sums"], "*fp32"),
    **dict.fromkeys(["scale", "soft_cap"], "fp32"),
}


def compile_kernel(
    kernel: triton.JITFunction, constants: dict[str, int], dtype: str, architecture: int, num_stages: int
) -> tuple[str, int]:
    """The target that the kernel's PTX names, and its bytes of shared memory."""
    types = {**dict.fromkeys(_INPUTS, f"*{dtype}"), **_TYPES}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    target = GPUTarget("cuda", architecture, 32)
    compiled = triton.compile(source, target=target, options={"num_stages": num_stages})
    found = re.search(r"\.target (sm_\d+)", compiled.asm["ptx"])
    assert found is not None
    return found[1], compiled.metadata.shared


def main(cases: list[tuple[str, int, int, int]]) -> None:
    """Compile for every type, bytes per number, head size and architecture of ``cases``."""
    for dtype, itemsize, head_size, architecture in cases:
        sizes = block_sizes(group=4, head_size=head_size, max_nodes=13)
        keys_per_step, num_stages = pipeline(sizes["BLOCK_D"] * itemsize)
        switches = {**sizes, **_SWITCHES, "BLOCK_T": keys_per_step}
        print("attend", *compile_kernel(attend, switches, dtype, architecture, num_stages))
        print("merge", *compile_kernel(merge, sizes, dtype, architecture, num_stages))


if __name__ == "__main__":
    main([("bf16", 2, 128, 80), ("bf16", 2, 128, 90)])
