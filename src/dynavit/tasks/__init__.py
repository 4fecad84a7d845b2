"""One problem each: forward, loss, evaluation, prediction, and what a person sees of it."""
