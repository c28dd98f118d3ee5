"""A bridge from MLX's reference BLAS to numpy's OpenBLAS, on Linux only and never needed."""

from mlxcel.native.build import environment as environment
