"""Image classification: MNIST and its coloured, rotated and 6-and-9 variants as pairs, the paper's CNN."""
