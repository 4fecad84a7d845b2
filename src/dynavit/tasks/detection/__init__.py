"""Detection as a problem: what each anchor and proposal has to learn, the losses, average precision, and answers."""
