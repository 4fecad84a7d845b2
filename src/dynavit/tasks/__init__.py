"""One problem each: forward, loss and evaluation."""
