"""An exported model with onnxruntime and NumPy alone: neither torch nor dynavit is needed where it runs.

python examples/onnxruntime_alone.py            # trains and exports on digits, then runs the file
python examples/onnxruntime_alone.py BUNDLE     # only runs it
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def classify(bundle, images):
    """(n, c, h, w) bytes -> names of classes. All that a program needs that ships the bundle."""
    import onnxruntime

    manifest = json.loads((Path(bundle) / "manifest.json").read_text())
    facts = manifest["preprocess"]
    mean, std = (np.array(facts[name], np.float32)[:, None, None] for name in ("mean", "std"))
    inputs = (images.astype(np.float32) / 255 - mean) / std
    session = onnxruntime.InferenceSession(Path(bundle) / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: inputs})
    return [manifest["classes"][best] for best in logits.argmax(-1)]


def make_bundle(folder, epochs):
    """A norm that folds away, trained, folded and exported."""
    import dynavit
    from dynavit.runs.export import export_run

    run = Path(folder) / "run"
    config = dynavit.TrainConfig(norm="bn", epochs=epochs, batch_size=32, lr=3e-3)
    config.augment.recipe = "none"  # 8x8 pixels leave no room for shifts
    dynavit.train_run(config, run)
    export_run(run, folded=True)
    return Path(folder) / "run-onnx"


def main(bundle=None, epochs=8.0):
    with tempfile.TemporaryDirectory() as folder:
        if bundle is None:
            bundle = make_bundle(folder, epochs)
            from dynavit.data.open import open_data

            split = open_data("digits").splits["test"]
            np.savez(Path(folder) / "digits.npz", images=split.images.numpy(), labels=split.labels.numpy())
            # A new process, so that nothing of torch is loaded: what is printed comes from onnxruntime alone.
            call = [sys.executable, __file__, str(bundle), "--images", str(Path(folder) / "digits.npz")]
            return subprocess.run(call, check=True, capture_output=True, text=True).stdout
    return None


def run_alone(bundle, images):
    arrays = np.load(images)
    names = classify(bundle, arrays["images"])
    right = np.mean([name == str(label) for name, label in zip(names, arrays["labels"], strict=True)])
    print(f"right: {right:.1%}; torch was {'' if 'torch' in sys.modules else 'not '}imported")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?")
    parser.add_argument("--images", help="an .npz file with images and labels")
    given = parser.parse_args()
    run_alone(given.bundle, given.images) if given.bundle else print(main())
