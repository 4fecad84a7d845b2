"""Run an exported bundle: numpy and onnxruntime are enough, no training code is loaded."""
