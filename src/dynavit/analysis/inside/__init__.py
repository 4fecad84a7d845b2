"""What happens inside a model on some images: probes run it, measures turn what they saw into plain numbers."""
