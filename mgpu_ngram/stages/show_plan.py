"""Print the parts of plans that several stages have: their text, and their time."""

from __future__ import annotations

from typing import Any

from mgpu_ngram.stages.report import many, where_planned


def show_text_plan(plan: dict[str, Any], more: str) -> None:
    """Print how a stage would read its text; `more` ends the line."""
    print(f"{plan['job']}: {many(plan['inputs'], 'input')} of {plan['input_bytes']:,} bytes")
    print(
        f"about {plan['tokens_about']:,} tokens in {many(plan['chunks'], 'chunk')} of up to {plan['chunk_bytes']:,} "
        f"bytes; {where_planned(plan)}{more}"
    )


def show_time_plan(plan: dict[str, Any]) -> None:
    """Print how long a run may take."""
    seconds, of = plan["seconds_about"], {"gpu": "H200s", "cpu": "cores of a Xeon"}[plan["device"]]
    print(
        f"time: about {seconds:,.{0 if seconds >= 10 else 1}f} s at the rates of {of}, and the time to write the output"
    )
