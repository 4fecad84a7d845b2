"""Pure functions from recorded tensors or measured numbers to those that are shown, one idea per file. No model is run here."""
