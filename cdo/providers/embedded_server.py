"""Runs the embedded model in a child process: `python -P embedded_server.py --model PATH --ctx N`.

It serves the Chat Completions protocol on a free loopback port, below a secret path, so that other users of the
machine can neither send requests to it nor read along. When it is ready, it writes one line of JSON to stdout:
`{"url": "http://127.0.0.1:PORT/SECRET/v1"}`. On failure it writes `{"error": KIND, "detail": TEXT}`, with KIND
`missing` (no xllamacpp) or `load`, and exits. It ends when its stdin closes: the kernel closes it when the parent
dies, in whatever way. (While a model loads, xllamacpp holds the interpreter; the process then ends right after.)

This file imports nothing of cdo, so that it can be run by its path alone: `python -m` would put the working
directory, which may be an untrusted repository, at the front of the module search path.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import threading
from pathlib import Path
from typing import Any

# MiB of a slot's saved states. Without a cap llama.cpp keeps 8 GiB; 2k tokens of the default model take 46 MiB.
PROMPT_CACHE_MIB = 256
# Tokens computed between two checks of the connection: a dropped request frees the slot within two seconds.
BATCH = 512


def main(arguments: list[str] | None = None) -> None:
    """Serve until stdin closes; never returns."""
    parser = argparse.ArgumentParser(prog="embedded_server")
    parser.add_argument("--model", required=True, help="path of a GGUF file")
    parser.add_argument("--ctx", type=int, required=True, help="context in tokens (the model's own if lower)")
    options = parser.parse_args(arguments)
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of native code must not be taken for our line
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    watcher = threading.Thread(target=_leave_with_parent, daemon=True)
    watcher.start()
    try:
        server, url = _serve(options.model, options.ctx)
    except ImportError as error:
        told: dict[str, str] = {"error": "missing", "detail": str(error)}
    except Exception as error:  # any other exception of xllamacpp means a model that cannot be run
        told = {"error": "load", "detail": str(error)}
    else:
        told = {"url": url}
    with contextlib.suppress(OSError):
        answer.write(json.dumps(told) + "\n")
        answer.close()
    if "url" in told:
        watcher.join()
        del server
    os._exit(0 if "url" in told else 1)


def _leave_with_parent() -> None:
    """Wait for the end of stdin and exit at once: there is nothing to save."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(0)


def _serve(model: str, ctx: int) -> tuple[Any, str]:
    """Load the model; return the server (which runs as long as this object lives) and its address."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = ctx  # llama.cpp lowers a slot's window to the model's training context
    params.n_parallel = 1  # slots do not share a prefix: one request after the other is six times faster
    params.sampling.seed = 1  # the same requests in the same order give the same answers
    # Threads wait for the slowest among them at every step, so one core that is busy with something else delays
    # them all: two threads on two busy cores read 15 tokens/s and write 8, one thread reads 60 and writes 50 to 90.
    # On an idle machine the core left out costs 15% of the writing and up to half of the reading.
    spare = max(1, _cores() - 1)
    params.cpuparams.n_threads = min(spare, 8)
    params.cpuparams_batch.n_threads = spare
    secret = secrets.token_urlsafe(16)
    wanted = {
        "api_prefix": f"/{secret}",
        "cache_prompt": True,
        "cache_ram_mib": PROMPT_CACHE_MIB,
        "n_batch": BATCH,
        "endpoint_slots": False,  # would show prompts
        "ui": False,
        "verbosity": 1,  # errors only
        "sse_ping_interval": 5,
    }
    if not _has_gpu(xllamacpp):
        # Flash attention makes a CPU generate at 0.6 of the speed, and read prompts 1.2 times faster.
        wanted["flash_attn_type"] = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    for name, value in wanted.items():
        if hasattr(params, name):  # other versions of xllamacpp may lack one
            setattr(params, name, value)
    server = xllamacpp.Server(params)
    prefix = f"/{secret}" if hasattr(params, "api_prefix") else ""
    return server, f"{server.listening_address}{prefix}/v1"


def _has_gpu(xllamacpp: Any) -> bool:
    try:
        return any("GPU" in device["type"].name for device in xllamacpp.get_device_info())
    except Exception:  # an older version, or a driver without an answer: as on a machine without a GPU
        return False


def _cores() -> int:
    """Return the number of processors this process may use, by its affinity and the quota of its container."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        count = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        pass
    return count


if __name__ == "__main__":
    main()
