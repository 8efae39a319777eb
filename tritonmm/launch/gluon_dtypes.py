"""Gluon's dtypes by the short names of `dtypes.DTYPES`. int4 is read in words of four, packed int8 in words of two."""

from triton.experimental.gluon import language as gl

GLUON_DTYPES = {
    "bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32, "int8": gl.int8, "int4": gl.int16, "int8p": gl.int16,
    "int32": gl.int32, "fp8e4m3": gl.float8e4nv, "fp8e5m2": gl.float8e5,
}  # fmt: skip
