"""What is computed from recorded tensors: pure functions, one idea per file. No model is run here."""
