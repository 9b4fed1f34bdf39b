"""Dialog state tracking: readers, belief text, generated dialogs, audit of paired data."""
