"""Formats of floating-point numbers in memory."""

from __future__ import annotations

from typing import Any

FLOAT32, FLOAT16, BFLOAT16 = range(3)
FORMATS: tuple[dict[str, Any], ...] = ({}, {"HALF": '"f16"'}, {"HALF": '"bf16"'})  # definitions of a .cu, by format
