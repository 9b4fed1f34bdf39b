"""Changes of the input: the augmented view of a pair is made here."""
