"""Scheme E: the same models behind LitServe, with early exit inside of `predict`, as one would write it there.

    python benchmarks/serve/lit_scheme.py --model accelerator [--scale 20]

LitServe collects up to `most` requests and calls `predict` with them; survivors go on in that batch, and all are answered when
the last of them has left. It is not installed with this package (pip install litserve). Prints one line of JSON, then listens.
"""

import argparse
import base64
import io
import json
import os
import socket
import sys

import litserve
from PIL import Image
from schemes import in_one_call, random_t2t, sleeping


class EarlyExit(litserve.LitAPI):
    """{"b64": image, "max_exit": k} -> the exits it ran."""

    def __init__(self, model, scale, **options):
        super().__init__(**options)
        self.name, self.scale = model, scale

    def setup(self, device):
        self.served = random_t2t()[0] if self.name == "t2t12" else sleeping(self.name, self.scale)[0]

    def decode_request(self, request):
        image = Image.open(io.BytesIO(base64.b64decode(request["b64"])))
        return self.served.prepare(image), request["max_exit"]

    def batch(self, inputs):
        return inputs

    def unbatch(self, output):
        return output

    def predict(self, inputs):
        return in_one_call(self.served, inputs if isinstance(inputs, list) else [inputs])

    def encode_response(self, output):
        return {"results": [{"exit": len(output), "cost": {"batch": output}}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, choices=("accelerator", "cpu", "t2t12"))
    parser.add_argument("--scale", type=float, default=20.0)
    options = parser.parse_args()
    most = 32 if options.model == "accelerator" else 8
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    facts = {"address": f"http://127.0.0.1:{port}", "pid": os.getpid(), "most": most, "lines_ms": None}
    print(json.dumps(facts), flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # LitServe prints there
    api = EarlyExit(options.model, options.scale, max_batch_size=most, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
