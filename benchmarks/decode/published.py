"""Published figures of Amun, and those of its program on an H200.

Source: Hoang et al., "Fast Neural Machine Translation Implementation", 2018, Tables 3 and 4, a V100. The program: its
GPU build for sm_90 on one H200, measured on 2026-11-23.
"""

from __future__ import annotations

AMUN = "Amun on an H200"
UNFUSED_STEPS = ("add bias", "softmax", "k-best")
# Table 3, seconds of a whole run, by beam size: the product (baseline and fused), the unfused steps, the fused one.
PRODUCT_SECONDS = {1: (5.39, 5.38), 3: (14.18, 14.16), 9: (38.35, 38.42)}
UNFUSED_SECONDS = {1: (1.26, 1.69, 12.53), 3: (3.76, 4.75, 18.23), 9: (11.64, 14.4, 36.7)}
FUSED_SECONDS = {1: 2.07, 3: 3.43, 9: 17.5}
# Table 4, seconds of a whole run, by beam size: baseline and tensor cores.
TENSOR_CORE_SECONDS = {1: (39.97, 34.54), 9: (145.8, 116.8)}
# On an H200: 1,280 rows, V = 50,000, float32, by beam size. Seconds of a step.
STEP_ROWS, STEP_WORDS = 1280, 50_000
AMUN_KERNEL = {1: 0.192e-3, 3: 0.250e-3, 9: 0.503e-3}  # fused softmax and k-best
AMUN_STEP = {1: 0.40e-3, 3: 0.36e-3, 9: 0.59e-3}  # the whole step after the product
AMUN_UNFUSED = {1: 4.1e-3, 3: 2.6e-3, 9: 2.2e-3}
# On an H200: source words a second of whole decodes with its best batch; V = 50,000, E = 512, H = 1,024.
AMUN_WORDS = {
    "float32": {1: 99.7e3, 3: 49.1e3, 6: 28.5e3, 9: 19.4e3},
    "float16": {1: 143e3, 3: 74.0e3, 6: 43.8e3, 9: 30.3e3},  # tensor cores
}
