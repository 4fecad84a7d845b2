"""Scheme F: the same models behind Ray Serve and its `@serve.batch`, with early exit inside of the batched call.

    python benchmarks/serve/ray_scheme.py --model accelerator [--scale 20]

As in `lit_scheme.py`, survivors go on in their own batch and all are answered together. Ray is not installed with this package
(pip install 'ray[serve]', 490 MB). Prints one line of JSON when it answers, and ends with SIGTERM.
"""

import argparse
import asyncio
import base64
import io
import json
import os
import signal
import socket
import sys
from pathlib import Path

import ray
from ray import serve


def deployment(most):
    @serve.deployment(max_ongoing_requests=256, ray_actor_options={"num_cpus": 1})
    class EarlyExit:
        """{"b64": image, "max_exit": k} -> the exits it ran."""

        def __init__(self, model, scale):
            from schemes import random_t2t, sleeping

            self.served = random_t2t()[0] if model == "t2t12" else sleeping(model, scale)[0]

        @serve.batch(max_batch_size=most, batch_wait_timeout_s=0.005)
        async def predict(self, inputs):
            from schemes import in_one_call

            return await asyncio.to_thread(in_one_call, self.served, inputs)

        async def __call__(self, request):
            if request.method == "GET":
                return {"pid": os.getpid()}
            from PIL import Image

            asked = await request.json()
            entry = self.served.prepare(Image.open(io.BytesIO(base64.b64decode(asked["b64"]))))
            company = await self.predict((entry, asked["max_exit"]))
            return {"results": [{"exit": len(company), "cost": {"batch": company}}]}

    return EarlyExit


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, choices=("accelerator", "cpu", "t2t12"))
    parser.add_argument("--scale", type=float, default=20.0)
    options = parser.parse_args()
    told = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Ray prints there
    most = 32 if options.model == "accelerator" else 8
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Ray's processes inherit these; a runtime_env would start every one of them twice.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        handle = serve.run(deployment(most).bind(options.model, options.scale), route_prefix="/predict")
        del handle
        from urllib.request import urlopen

        with urlopen(f"http://127.0.0.1:{port}/predict") as answer:
            pid = json.load(answer)["pid"]
        facts = {"address": f"http://127.0.0.1:{port}", "pid": pid, "most": most, "lines_ms": None}
        os.write(told, (json.dumps(facts) + "\n").encode())
        signal.sigwait(signals)
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
