"""The inside of a model on some images, as plain numbers: probes run the model, measures turn what they record into numbers."""
