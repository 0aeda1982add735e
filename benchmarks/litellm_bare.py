"""The calls of a cdo run through litellm alone, tuned as far as its users can.

Local price table, production mode, no garbage collection while it is imported and what is then there
frozen, its cheapest OpenAI-shaped route, no retries, and leaving without its 1.4 s of clean-up.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys

from bare import arguments, deliberate


async def run(url: str, turns: int, width: int) -> dict[str, float]:
    """The job through `litellm.acompletion`."""
    gc.disable()
    import litellm

    gc.enable()
    gc.freeze()

    async def ask(kind: str, call: str, prompt: str) -> str:
        response = await litellm.acompletion(
            model="hosted_vllm/bench",
            api_base=f"{url}/v1",
            api_key="x",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=4096,
            num_retries=0,
            max_retries=0,
            extra_headers={"X-Cdo-Kind": kind, "X-Cdo-Call": call},
        )
        return str(response.choices[0].message.content)

    return await deliberate(ask, turns, width)


if __name__ == "__main__":
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_MODE"] = "PRODUCTION"
    options = arguments("A bare litellm script making the calls of a cdo run.")
    print(json.dumps(asyncio.run(run(options.url, options.turns, options.width))))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
