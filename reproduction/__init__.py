"""The claims of the paper, the runs that test them, and the ledger that compares the two."""
