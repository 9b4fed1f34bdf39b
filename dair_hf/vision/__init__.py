"""Image classification: the data sets of the paper as pairs, and the networks that learn them."""
