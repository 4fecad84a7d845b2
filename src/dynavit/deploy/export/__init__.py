"""Write models as ONNX and .pt2 files, each compared with the model."""
